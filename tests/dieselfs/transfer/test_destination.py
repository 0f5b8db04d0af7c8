"""A destination: what is written into it stays in it."""

import errno
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.limits import PATH_DEPTH_MAX
from dieselfs.snapshot.reader import Stat
from dieselfs.transfer.destination import (
    FOLDERS_OPEN_MAX,
    Destination,
    open_destination,
    permissions_allowed,
)
from tests.support.descriptors import descriptor_count

FILE = Stat(1, stat.S_IFREG | 0o640, 3, 1_600_000_000_123_456_789)
FOLDER = Stat(1, stat.S_IFDIR | 0o750, 0, 1_500_000_000_000_000_001)


@pytest.fixture
def destination(tmp_path: Path) -> Iterator[Destination]:
    opened = open_destination(os.fsencode(tmp_path / "made" / "here"))
    yield opened
    opened.close()


@pytest.fixture
def root(destination: Destination) -> Path:
    return Path(os.fsdecode(destination.folder))


def test_a_file_is_whole_with_mode_and_time(destination: Destination, root: Path) -> None:
    destination.make_folder(b"a")
    destination.write_file(b"a/f", b"abc", FILE)
    status = (root / "a" / "f").stat()
    assert (root / "a" / "f").read_bytes() == b"abc"
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o640, FILE.mtime_ns)
    assert os.listdir(root / "a") == ["f"]


def test_status_and_removal(destination: Destination, root: Path) -> None:
    destination.make_folder(b"a")
    destination.write_file(b"a/f", b"abc", FILE)
    destination.make_link(b"a/link", b"/etc/passwd", 5)
    destination.set_status(b"a/f", FILE._replace(mode=stat.S_IFREG | 0o4400, mtime_ns=7))
    destination.set_status(b"a", FOLDER)
    assert stat.S_IMODE((root / "a/f").stat().st_mode) == 0o400 and (root / "a/f").stat().st_mtime_ns == 7
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o750
    with pytest.raises(OSError, match="symbolic links"):
        destination.set_status(b"a/link", FILE)
    with pytest.raises(OSError, match="not empty"):
        destination.remove(b"a")
    for path in (b"a/f", b"a/link", b"a", b"a", b"none"):
        destination.remove(path)
    assert os.listdir(root) == [] and Path("/etc/passwd").exists()
    destination.make_folder(b"a")
    destination.write_file(b"a/f", b"abc", FILE)


def test_set_user_id_is_dropped(destination: Destination, root: Path) -> None:
    destination.write_file(b"f", b"abc", FILE._replace(mode=stat.S_IFREG | 0o6755))
    assert stat.S_IMODE((root / "f").stat().st_mode) == 0o755


def test_permissions_are_limited(tmp_path: Path) -> None:
    limited = Destination(os.fsencode(tmp_path), 0o750)
    limited.write_file(b"f", b"abc", FILE._replace(mode=stat.S_IFREG | 0o777))
    limited.make_folder(b"a")
    limited.finish_folder(b"a", FOLDER._replace(mode=stat.S_IFDIR | 0o777))
    limited.close()
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("f", "a")] == [0o750, 0o750]


@pytest.mark.parametrize("umask", [0o077, 0o022, 0])
def test_the_umask_is_known_without_changing_it(umask: int) -> None:
    before = os.umask(umask)
    try:
        assert permissions_allowed() == 0o777 & ~umask
    finally:
        assert os.umask(before) == umask


def test_extents_come_in_any_order(destination: Destination, root: Path) -> None:
    aside = destination.begin_file(b"f")
    destination.write_extent(b"f", aside, b"c", 2)
    assert not (root / "f").exists()
    destination.write_extent(b"f", aside, memoryview(b"ab"), 0)
    destination.finish_file(b"f", aside, FILE)
    assert (root / "f").read_bytes() == b"abc"
    destination.discard_file(b"f", destination.begin_file(b"f"))
    assert os.listdir(root) == ["f"]


def test_a_folder_gets_mode_and_time_when_it_is_finished(destination: Destination, root: Path) -> None:
    destination.make_folder(b"a")
    destination.write_file(b"a/f", b"abc", FILE)
    destination.finish_folder(b"a", FOLDER)
    status = (root / "a").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o750, FOLDER.mtime_ns)


def test_a_folder_that_is_there_is_made_writable_for_us(destination: Destination, root: Path) -> None:
    (root / "a").mkdir(0o555)
    destination.make_folder(b"a")
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o755


def test_a_link_replaces_what_is_no_folder(destination: Destination, root: Path) -> None:
    (root / "l").write_text("old")
    (root / "d").mkdir()
    destination.make_link(b"l", b"/nowhere", 5)
    assert os.readlink(root / "l") == "/nowhere"
    assert (root / "l").lstat().st_mtime_ns == 5
    with pytest.raises(IsADirectoryError):
        destination.make_link(b"d", b"x", 5)
    assert sorted(os.listdir(root)) == ["d", "l"]


def test_nothing_is_written_through_a_link(destination: Destination, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("safe")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "victim")
    acts: tuple[Callable[[], object], ...] = (
        lambda: destination.write_file(b"folder/victim", b"bad", FILE),
        lambda: destination.begin_file(b"folder/new"),
        lambda: destination.make_folder(b"folder"),
        lambda: destination.make_folder(b"folder/new"),
        lambda: destination.make_link(b"folder/new", b"x", 5),
        lambda: destination.finish_folder(b"folder", FOLDER),
        lambda: destination.status(b"folder/victim"),
    )
    for act in acts:
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
    destination.write_file(b"file", b"new", FILE)  # the link is replaced
    assert not (root / "file").is_symlink()
    assert (outside / "victim").read_text() == "safe"
    assert os.listdir(outside) == ["victim"]


@pytest.mark.parametrize("path", [b"../x", b"/x", b"a/../x", b"a//x", b"a\0b", b"."])
def test_a_bad_path_is_refused(destination: Destination, tmp_path: Path, path: bytes) -> None:
    acts: tuple[Callable[[], object], ...] = (
        lambda: destination.write_file(path, b"abc", FILE),
        lambda: destination.make_folder(path),
        lambda: destination.make_link(path, b"x", 5),
        lambda: destination.status(path),
    )
    for act in acts:
        with pytest.raises(InvalidInput):
            act()
    assert os.listdir(tmp_path) == ["made"]


def test_descriptors_are_bounded(destination: Destination) -> None:
    before = descriptor_count()
    for number in range(3 * FOLDERS_OPEN_MAX):
        destination.make_folder(b"%d" % number)
        destination.write_file(b"%d/f" % number, b"abc", FILE)
    deep = b"/".join([b"d"] * 200)
    for end in range(1, 200):
        destination.make_folder(deep[: 2 * end - 1])
    assert descriptor_count() <= before + FOLDERS_OPEN_MAX + 1


def test_a_destination_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DieselfsError, match="cannot write to "):
        open_destination(os.fsencode(tmp_path / "file"))


def test_a_path_as_deep_as_the_limit_is_written() -> None:
    parts = [b"d"] * (PATH_DEPTH_MAX - 1)
    # Not in `tmp_path`: shutil.rmtree, with which pytest removes that, does not reach so deep.
    root = tempfile.mkdtemp()
    try:
        with closing(open_destination(os.fsencode(root))) as destination:
            for depth in range(1, len(parts) + 1):
                destination.make_folder(b"/".join(parts[:depth]))
        path = b"/".join([*parts, b"f"])
        with closing(open_destination(os.fsencode(root))) as other:  # which has no folder open
            other.write_file(path, b"abc", FILE)
            status = other.status(path)
        assert status is not None and status.st_size == 3
    finally:
        subprocess.run(["rm", "-rf", root], check=True)
