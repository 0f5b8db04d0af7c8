"""A local file as a source: which file is opened, and that it stays the one that was opened."""

import os
import socket
from pathlib import Path

import pytest

from dieselfs.attached.local_file import LocalFile
from dieselfs.attached.opening import open_source
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound


def anything(location: bytes) -> None:
    """Allow all."""


def opened(path: Path) -> LocalFile:
    return LocalFile(os.fsencode(path), anything)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.tar"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(0, 1_600_000_000_123_456_789))
    return path


def test_a_range_and_the_version(file: Path) -> None:
    source = opened(file)
    assert source.source.location == os.fsencode(file.resolve())
    assert source.source.version == (10, "mtime_ns=1600000000123456789")
    assert (source.read(2, 3), source.read(10, 0)) == (b"234", b"")
    assert os.pread(source.descriptor, 4, 0) == b"0123"
    source.check()
    with pytest.raises(Damaged, match=r"a\.tar: it ends at 10: it has changed"):
        source.read(8, 3)
    source.close()


def test_the_file_behind_links_decides(tmp_path: Path, file: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    asked: list[bytes] = []
    LocalFile(os.fsencode(tmp_path / "link" / "a.tar"), asked.append).close()
    assert asked == [os.fsencode(file.resolve())]

    def refuse(location: bytes) -> None:
        raise AccessDenied("no")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(AccessDenied, match="no"):
        LocalFile(os.fsencode(file), refuse)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
    for name in ("pipe", "socket", "."):
        with pytest.raises(InvalidInput, match="not a regular file"):
            opened(tmp_path / name)
    with pytest.raises(InvalidInput, match="not a regular file"):
        opened(Path("/dev/null"))
    with pytest.raises(NotFound, match="missing: No such file or directory"):
        opened(tmp_path / "missing")


@pytest.mark.parametrize("change", ["written", "truncated", "touched"])
def test_a_change_while_it_is_open_is_noticed(file: Path, change: str) -> None:
    source = opened(file)
    if change == "written":
        file.write_bytes(b"9876543210")
    elif change == "truncated":
        os.truncate(file, 5)
    else:
        os.utime(file, ns=(0, 1))
    with pytest.raises(Damaged, match="changed while it was read"):
        source.check()
    source.close()


def test_a_file_that_is_replaced_stays_the_one_that_was_opened(tmp_path: Path, file: Path) -> None:
    source = opened(file)
    (tmp_path / "new").write_bytes(b"abcdefghij")
    os.replace(tmp_path / "new", file)
    assert source.read(0, 10) == b"0123456789"
    source.check()
    source.close()


def test_locations_that_are_no_files() -> None:
    for location in (b"a.tar", b"ftp://x/a.tar", b""):
        with pytest.raises(InvalidInput, match="only files, objects and files on the web"):
            open_source(location, anything)
