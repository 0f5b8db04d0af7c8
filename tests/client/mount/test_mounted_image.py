"""The image view: what is cached is read without a request to the daemon, whatever call a program uses."""

import ctypes
import errno
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.settings.table import IMAGE
from dieselfs_client.mount.points.options import MountOptions
from tests.client.conftest import needs_root
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.mounted import RunningMount, mounted

FILES = {b"small": b"s" * 100, b"page": b"p" * 4096, b"folder/large": b"large" * 40_000, b"empty": b""}
ATTEMPTS = 5
_AT_EMPTY_PATH, _AT_STATX_FORCE_SYNC, _STATX_ALL = 0x1000, 0x2000, 0xFFF
_libc = ctypes.CDLL(None, use_errno=True)

pytestmark = needs_root


@pytest.fixture(scope="module")
def running(driver: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMount]:
    entries = [TreeEntry(path, 0o100644, 0, content) for path, content in FILES.items()]
    entries.append(TreeEntry(b"link", 0o120777, 0, b"small"))
    options = MountOptions(driver=driver, view=IMAGE)
    with mounted(pack_entries(entries), tmp_path_factory.mktemp("image"), options=options) as running:
        yield running


def requests(mount: Path) -> int:
    told = json.loads((mount / ".dieselfs/stats").read_text())
    return sum(told["fuse"]["requests"].values())


def every_call(mount: Path, scratch: Path) -> None:
    """All calls with which programs use files."""
    assert sorted(os.listdir(mount)) == ["empty", "folder", "link", "page", "small"]
    assert (os.readlink(mount / "link"), len(list(os.scandir(mount / "folder")))) == ("small", 1)
    assert not (mount / "none").exists()
    for path, content in FILES.items():
        place = os.path.join(os.fsencode(mount), path)
        assert os.access(place, os.R_OK) and os.stat(place).st_size == len(content)
        with open(place, "rb") as file:
            assert file.read() == content
        descriptor = os.open(place, os.O_RDONLY)
        try:
            read_through(descriptor, content, scratch)
        finally:
            os.close(descriptor)


def read_through(descriptor: int, content: bytes, scratch: Path) -> None:
    assert os.fstat(descriptor).st_size == len(content) and not os.isatty(descriptor)
    status = ctypes.create_string_buffer(256)
    flags = _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC
    assert _libc.statx(descriptor, b"", flags, _STATX_ALL, status) == 0
    assert os.fstatvfs(descriptor).f_bsize == 4096
    with pytest.raises(OSError) as caught:
        os.getxattr(descriptor, "user.none")
    assert caught.value.errno in (errno.ENODATA, errno.ENOTSUP)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    with open(scratch, "wb") as copy:
        if content:
            os.sendfile(copy.fileno(), descriptor, 0, len(content))
    assert scratch.read_bytes() == content
    if not content:
        return
    assert os.lseek(descriptor, 0, os.SEEK_DATA) == 0 and os.lseek(descriptor, 0, os.SEEK_HOLE) == len(
        content
    )
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:] == content
    receiver, sender = os.pipe()
    assert os.splice(descriptor, sender, 4096, 0) == min(4096, len(content))
    for end in (receiver, sender):
        os.close(end)
    assert os.preadv(descriptor, [bytearray(50)], 10) == 50


def test_no_call_asks_the_daemon_for_what_is_cached(running: RunningMount, tmp_path: Path) -> None:
    every_call(running.path, tmp_path / "copy")
    for _ in range(ATTEMPTS):  # another test may make the kernel drop its caches
        first, second = requests(running.path), requests(running.path)
        every_call(running.path, tmp_path / "copy")
        if requests(running.path) - second == second - first:
            return
    raise AssertionError(f"the daemon was asked in each of {ATTEMPTS} attempts")


def test_the_control_folder_is_there_and_not_listed(running: RunningMount) -> None:
    assert ".dieselfs" not in os.listdir(running.path)
    assert json.loads((running.path / ".dieselfs/info").read_text())["view"] == IMAGE


def test_other_users_are_kept_out(running: RunningMount) -> None:
    status = running.path.stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o700, os.geteuid())
