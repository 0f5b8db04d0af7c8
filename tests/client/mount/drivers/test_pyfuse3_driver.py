"""What this driver says to libfuse, request by request. What programs see is in `test_mounted_*.py`."""

import errno
import os
import stat
from collections.abc import Awaitable, Iterator

import pytest
import trio

from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.control.tree import SHUFFLE_INODE
from dieselfs_client.mount.kernel.protocol import FOREVER_S
from dieselfs_client.mount.reading.core import CONTROL_INODE, ROOT_INODE, MountCore
from tests.support.control import simple_control
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.no_read_ahead import plain_reads

pyfuse3 = pytest.importorskip("pyfuse3", reason="needs pyfuse3 (pip install '.[pyfuse3]')")
from dieselfs_client.mount.drivers.pyfuse3_driver import Pyfuse3Driver  # noqa: E402  # needs what is imported above

USER, GROUP = 1234, 5678
CONTEXT = pyfuse3.RequestContext
STALE = 1 << 50


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"folder/file", 0o100640, 1_600_000_000_123_456_789, b"content")])


@pytest.fixture
def source(packed: PackedDataset) -> MemoryChunkSource:
    return packed.source()


@pytest.fixture
def driver(packed: PackedDataset, source: MemoryChunkSource, nursery: trio.Nursery) -> Pyfuse3Driver:
    return driver_of(-1, packed, source, nursery)


@pytest.fixture
def connected(
    packed: PackedDataset, source: MemoryChunkSource, nursery: trio.Nursery
) -> Iterator[Pyfuse3Driver]:
    """With a device, if none that anybody has mounted."""
    device = os.open(os.devnull, os.O_RDWR)
    yield driver_of(device, packed, source, nursery)
    os.close(device)


def driver_of(
    device: int, packed: PackedDataset, source: MemoryChunkSource, nursery: trio.Nursery
) -> Pyfuse3Driver:
    core = MountCore(packed.snapshot)
    reads = plain_reads(core, ChunkCache(packed.snapshot, source, 1 << 20, nursery))
    return Pyfuse3Driver(device, core, reads, simple_control(packed.snapshot), USER, GROUP)


async def inode_of(driver: Pyfuse3Driver, *names: bytes) -> int:
    inode = ROOT_INODE
    for name in names:
        inode = (await driver.lookup(inode, name, CONTEXT)).st_ino
    return inode


async def assert_errno(code: int, answer: Awaitable[object]) -> None:
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await answer
    assert errno.errorcode[caught.value.errno] == errno.errorcode[code]


async def test_what_is_told_of_a_file_holds_for_ever(driver: Pyfuse3Driver) -> None:
    entry = await driver.lookup(await inode_of(driver, b"folder"), b"file", CONTEXT)
    assert (entry.st_mode, entry.st_size, entry.st_nlink) == (stat.S_IFREG | 0o640, 7, 1)
    assert (entry.st_uid, entry.st_gid) == (USER, GROUP)
    assert entry.st_mtime_ns == entry.st_atime_ns == entry.st_ctime_ns == 1_600_000_000_123_456_789
    assert (entry.entry_timeout, entry.attr_timeout) == (FOREVER_S, FOREVER_S)


async def test_that_there_is_nothing_holds_for_ever_too(driver: Pyfuse3Driver) -> None:
    entry = await driver.lookup(ROOT_INODE, b"nothing", CONTEXT)
    assert (entry.st_ino, entry.entry_timeout) == (0, FOREVER_S)


async def test_the_name_of_a_control_file_does_not_hold(driver: Pyfuse3Driver) -> None:
    folder = await driver.lookup(ROOT_INODE, b".dieselfs", CONTEXT)
    assert (folder.st_ino, folder.entry_timeout) == (CONTROL_INODE, FOREVER_S)
    first = await driver.lookup(CONTROL_INODE, b"info", CONTEXT)
    second = await driver.lookup(CONTROL_INODE, b"info", CONTEXT)
    assert first.st_ino != second.st_ino
    assert (first.entry_timeout, first.attr_timeout) == (0, FOREVER_S)
    await driver.forget([(first.st_ino, 1), (ROOT_INODE, 5)])
    await assert_errno(errno.ESTALE, driver.getattr(first.st_ino, CONTEXT))
    assert (await driver.getattr(second.st_ino, CONTEXT)).st_size == second.st_size


async def test_a_shuffle(driver: Pyfuse3Driver) -> None:
    entry = await driver.lookup(SHUFFLE_INODE, b"seed=1", CONTEXT)
    assert await driver.read(entry.st_ino, 0, 4096) == b"folder/file\n"
    await assert_errno(errno.EINVAL, driver.lookup(SHUFFLE_INODE, b"speed=1", CONTEXT))


async def test_reading(driver: Pyfuse3Driver, source: MemoryChunkSource) -> None:
    inode = await inode_of(driver, b"folder", b"file")
    handle = (await driver.open(inode, 0, CONTEXT)).fh
    assert await driver.read(handle, 0, 4096) == b"content"
    assert await driver.read(handle, 3, 2) == b"te"
    assert await driver.read(handle, 7, 10) == b""
    assert source.fetched_chunks == [0]
    await driver.release(handle)


async def test_losses_are_taken_and_nothing_else_is(driver: Pyfuse3Driver) -> None:
    inode = await inode_of(driver, b"folder", b"file")
    scores = await inode_of(driver, b".dieselfs", b"scores")
    handle = (await driver.open(scores, os.O_WRONLY | os.O_TRUNC, CONTEXT)).fh
    fields, attributes = pyfuse3.SetattrFields(), pyfuse3.EntryAttributes()
    await assert_errno(errno.EROFS, driver.setattr(scores, attributes, fields, None, CONTEXT))
    assert await driver.write(handle, 0, b"0.5 folder/file\n") == 16
    await assert_errno(errno.EINVAL, driver.write(handle, 99, b"\n"))
    assert await driver.write(handle, 16, b"\n") == 1
    await assert_errno(errno.EINVAL, driver.open(scores, os.O_WRONLY | os.O_TRUNC, CONTEXT))
    info = await inode_of(driver, b".dieselfs", b"info")
    for refused in (inode, info):
        await assert_errno(errno.EROFS, driver.open(refused, os.O_RDWR | os.O_TRUNC, CONTEXT))
        await assert_errno(errno.EROFS, driver.write(refused, 0, b"x"))
        await assert_errno(errno.EROFS, driver.setattr(refused, attributes, fields, None, CONTEXT))
    await assert_errno(errno.EROFS, driver.create(ROOT_INODE, b"new", 0o644, os.O_WRONLY, CONTEXT))
    await assert_errno(errno.EROFS, driver.unlink(ROOT_INODE, b"folder", CONTEXT))


async def test_every_fault_is_an_errno(
    driver: Pyfuse3Driver, source: MemoryChunkSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other exception would end the mount."""
    inode = await inode_of(driver, b"folder", b"file")
    await assert_errno(errno.ENAMETOOLONG, driver.lookup(ROOT_INODE, b"n" * 256, CONTEXT))
    await assert_errno(errno.ESTALE, driver.lookup(STALE, b"name", CONTEXT))
    await assert_errno(errno.ESTALE, driver.getattr(STALE, CONTEXT))
    await assert_errno(errno.ESTALE, driver.read(STALE, 0, 10))
    await assert_errno(errno.ESTALE, driver.readdir(STALE, 0, pyfuse3.ReaddirToken()))
    await assert_errno(errno.EINVAL, driver.readlink(inode, CONTEXT))
    await assert_errno(errno.EINVAL, driver.read(ROOT_INODE, 0, 10))
    source.payloads[0][0] ^= 1
    await assert_errno(errno.EIO, driver.read(inode, 0, 10))
    monkeypatch.setattr(MountCore, "lookup", lambda *_: 1 // 0)
    await assert_errno(errno.EIO, driver.lookup(ROOT_INODE, b"bug", CONTEXT))


async def test_totals(driver: Pyfuse3Driver) -> None:
    totals = await driver.statfs(CONTEXT)
    assert (totals.f_frsize * totals.f_blocks, totals.f_files, totals.f_bavail) == (512, 3, 0)


def fail_to_receive(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have libfuse get this error from the device, while other tasks of pyfuse3 answer and wait."""

    async def receive() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(code, "fuse_session_receive_buf failed")

    async def main(max_tasks: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(receive)

    def init(operations: object, mountpoint: str, options: set[str]) -> None:
        descriptor = int(mountpoint.rpartition("/")[2])
        monkeypatch.setattr(pyfuse3, "close", lambda unmount: os.close(descriptor))

    monkeypatch.setattr(pyfuse3, "init", init)
    monkeypatch.setattr(pyfuse3, "main", main)


async def test_a_connection_that_is_cut_while_a_request_is_taken_is_the_end_of_the_mount(
    connected: Pyfuse3Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_receive(errno.ECONNABORTED, monkeypatch)
    await connected.run()


async def test_a_connection_that_fails_does_not_end_as_if_nothing_was_wrong(
    connected: Pyfuse3Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_receive(errno.ENOMEM, monkeypatch)
    with pytest.raises(ExceptionGroup) as caught:
        await connected.run()
    assert caught.group_contains(OSError, match=f"Errno {errno.ENOMEM}")
