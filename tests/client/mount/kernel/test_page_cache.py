"""Over a real mount that is served by a thread of this process."""

import os
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import trio

from dieselfs.errors import MountError
from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.control.tree import ControlTree
from dieselfs_client.mount.drivers.kernel_driver import KernelDriver
from dieselfs_client.mount.kernel import page_cache
from dieselfs_client.mount.kernel.page_cache import PAGE_HELPER_STARTS_MAX, PageCache, largest_payload_bytes
from dieselfs_client.mount.points.mounting import mount_device, unmount
from dieselfs_client.mount.reading.core import MountCore, Siblings
from dieselfs_client.mount.reading.error_log import ErrorLog
from lab.namespace import wait_for
from lab.network import clear
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.no_read_ahead import plain_reads
from tests.support.page_cache import cached_pages, is_cached, undisturbed

CHUNK_BYTES = 128 * 1024
CROWD = 4000
NAMESPACES_END_S = 240.0
SIZES = {b"large": 300_000, b"empty": 0, b"tiny": 1, b"page": 4096, b"odd": 5000, b"folder/other": 9000}


def content(path: bytes) -> bytes:
    return (path * (SIZES[path] // len(path) + 1))[: SIZES[path]]


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries(
        [TreeEntry(path, 0o100644, 0, content(path)) for path in SIZES], chunk_bytes=CHUNK_BYTES
    )


@pytest.fixture(scope="module")
def crowd() -> PackedDataset:
    """Many small files in two folders, in one chunk."""
    return pack_entries(
        [
            TreeEntry(b"%s/%06d" % (folder, number), 0o100644, 0, b"%06d" % number)
            for folder in (b"one", b"two")
            for number in range(CROWD // 2)
        ]
    )


class WatchedCore(MountCore):
    """Counts what the kernel asks for."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.lookups = self.listings = 0

    def lookup(self, folder: int, name: bytes) -> int:
        self.lookups += 1
        return super().lookup(folder, name)

    def siblings(self, nodes: range) -> Siblings:
        self.listings += 1
        return super().siblings(nodes)


class NoContents:
    """A mount without plans, and nothing to say of itself."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(name)


class Mount:
    def __init__(self, path: Path, packed: PackedDataset, device: int) -> None:
        self.path = path
        self.source: MemoryChunkSource = packed.source()
        self.snapshot = packed.snapshot
        self.device = device
        self.buffer_pool = BufferPool(largest_payload_bytes(packed.snapshot), 3)
        self.pages = PageCache(device, str(path), packed.snapshot, self.buffer_pool)
        self.table = ExtentTable(packed.snapshot)
        self.core = WatchedCore(packed.snapshot)

    def serve(self) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                core = self.core
                chunk_cache = ChunkCache(self.snapshot, self.source, 1 << 20, nursery)
                control = ControlTree(self.snapshot, NoContents(), ErrorLog())  # type: ignore[arg-type]  # never asked
                await KernelDriver(self.device, core, plain_reads(core, chunk_cache), control, 0, 0).run()
                nursery.cancel_scope.cancel()

        trio.run(main)

    def node(self, path: bytes) -> int:
        return self.snapshot.require(path)

    def store_chunks(self) -> int:
        """Push all, chunk by chunk, as it arrives; returns the bytes that were taken."""
        taken = 0
        for chunk in range(self.snapshot.chunk_count):
            extents = self.table.of_chunk(chunk)
            taken += self.pages.store(extents, memoryview(self.source.fetch_chunk(chunk)), extents.offsets)
        return taken


@contextmanager
def mount_of(packed: PackedDataset, path: Path) -> Iterator[Mount]:
    path.mkdir()
    device = mount_device(str(path), "packed")
    mount = Mount(path, packed, device)
    server = threading.Thread(target=mount.serve, daemon=True)
    server.start()
    try:
        yield mount
    finally:
        mount.pages.close()
        mount.buffer_pool.close()
        clear(path)
        server.join(20)
        os.close(device)


@pytest.fixture
def mount(packed: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mount_of(packed, tmp_path / "mount") as mount:
        yield mount


def test_what_is_stored_is_read_without_a_request(mount: Mount) -> None:
    taken = mount.store_chunks()
    assert taken == sum(SIZES.values())
    mount.source.fetched_chunks.clear()
    for path in SIZES:
        place = mount.path / os.fsdecode(path)
        assert is_cached(place)
        assert place.read_bytes() == content(path)
    assert not mount.source.fetched_chunks and not mount.source.fetched_extents


def test_payloads_in_the_arena_are_stored_from_there(mount: Mount) -> None:
    for chunk in range(mount.snapshot.chunk_count):
        extents = mount.table.of_chunk(chunk)
        room = mount.buffer_pool.take(mount.snapshot.chunk_payload_length(chunk))
        assert room is not None
        mount.source.fetch_chunk_into(chunk, room)
        mount.pages.store(extents, room, extents.offsets)
    for path in SIZES:
        assert is_cached(mount.path / os.fsdecode(path))
        assert (mount.path / os.fsdecode(path)).read_bytes() == content(path)


@pytest.fixture
def crowded(crowd: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mount_of(crowd, tmp_path / "crowded") as mount:
        yield mount


@pytest.fixture
def failed_stores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files the kernel did not know, for each order to store some."""
    counts = []
    original = page_cache._Helper.order

    def order(helper: page_cache._Helper, message: bytes) -> npt.NDArray[np.uint32]:
        failed = original(helper, message)
        if message.startswith(b"S"):
            counts.append(len(failed))
        return failed

    monkeypatch.setattr(page_cache._Helper, "order", order)
    return counts


def test_one_file_tells_that_the_kernel_knows_none_of_its_folder(
    crowded: Mount, failed_stores: list[int]
) -> None:
    assert crowded.store_chunks() == CROWD * 6
    assert failed_stores == [2, 0]
    assert crowded.core.lookups == 2  # the folders
    assert all(is_cached(crowded.path / f"{folder}/{CROWD // 2 - 1:06}") for folder in ("one", "two"))


def test_what_somebody_has_listed_is_stored_at_once(crowded: Mount, failed_stores: list[int]) -> None:
    assert len(os.listdir(crowded.path / "one")) == len(os.listdir(crowded.path / "two")) == CROWD // 2
    asked = crowded.core.lookups, crowded.core.listings
    assert crowded.store_chunks() == CROWD * 6
    assert crowded.store_chunks() == CROWD * 6
    assert failed_stores == [0, 0, 0]  # nothing is tried twice
    assert (crowded.core.lookups, crowded.core.listings) == asked


def test_one_file_that_was_opened_does_not_hide_that_the_others_are_unknown(
    crowded: Mount, failed_stores: list[int]
) -> None:
    """It is the very one that is tried."""
    for folder in ("one", "two"):
        assert (crowded.path / folder / "000000").read_bytes() == b"000000"
    assert crowded.store_chunks() == CROWD * 6
    assert failed_stores == [0, CROWD - 2, 0]
    assert is_cached(crowded.path / "one/000001")


def test_files_that_the_kernel_never_heard_of_are_made_known(mount: Mount) -> None:
    """`folder/other` alone of its folder; nobody has listed or opened anything."""
    node = mount.node(b"folder/other")
    extents = mount.table.of_files(np.array([node]))
    payload = memoryview(content(b"folder/other"))
    assert mount.pages.store(extents, payload, np.array([0])) == SIZES[b"folder/other"]
    assert is_cached(mount.path / "folder/other")
    assert not is_cached(mount.path / "odd")


def test_extents_that_do_not_begin_on_a_page_leave_the_page_out(mount: Mount) -> None:
    node = mount.node(b"large")
    extents = mount.table.of_files(np.array([node]))
    assert len(extents) > 2
    cut = extents[np.array([0])]
    cut.lengths[0] -= 1
    payload = memoryview(content(b"large"))[:CHUNK_BYTES]
    taken = mount.pages.store(cut, payload, np.array([0]))
    assert taken == cut.lengths[0] // 4096 * 4096
    pages = cached_pages(mount.path / "large")
    assert pages == [True] * (taken // 4096) + [False] * (len(pages) - taken // 4096)
    assert (mount.path / "large").read_bytes() == content(b"large")


def test_what_is_dropped_is_gone_and_comes_back_when_read(mount: Mount) -> None:
    mount.store_chunks()
    nodes = np.array([mount.node(b"odd"), mount.node(b"large")])
    mount.pages.drop(nodes)
    assert not any(cached_pages(mount.path / "odd")) and not any(cached_pages(mount.path / "large"))
    assert is_cached(mount.path / "page")
    assert (mount.path / "large").read_bytes() == content(b"large")
    assert mount.source.fetched_chunks


@undisturbed
def test_a_part_of_a_file_is_dropped_alone(mount: Mount) -> None:
    mount.store_chunks()
    extents = mount.table.of_files(np.array([mount.node(b"large")]))
    assert len(extents) > 1
    mount.pages.drop_parts(extents[np.array([1])])
    is_gone = mount.pages.reclaimed(extents)
    assert is_gone[1] and not is_gone[0]


@undisturbed
def test_what_the_kernel_has_reclaimed_is_found(mount: Mount) -> None:
    mount.store_chunks()
    everything = mount.table.of_files(np.array([mount.node(path) for path in SIZES]))
    assert not mount.pages.reclaimed(everything).any()
    assert not mount.pages.reclaimed(everything[np.zeros(len(everything), np.bool_)]).any()
    gone = [mount.node(b"odd"), mount.node(b"folder/other")]
    mount.pages.drop(np.array(gone))
    assert mount.pages.reclaimed(everything).tolist() == np.isin(everything.nodes, gone).tolist()
    last = os.open(mount.path / "large", os.O_RDONLY)
    os.posix_fadvise(last, SIZES[b"large"] - 4096, 0, os.POSIX_FADV_DONTNEED)
    os.close(last)
    is_reclaimed = mount.pages.reclaimed(everything)[everything.nodes == mount.node(b"large")]
    assert is_reclaimed.tolist() == [False] * (len(is_reclaimed) - 1) + [True]


@undisturbed
def test_files_that_the_kernel_has_forgotten_are_stored_after_one_listing(
    crowded: Mount, failed_stores: list[int]
) -> None:
    assert crowded.store_chunks() == CROWD * 6
    for folder in (b"one", b"two"):
        for number in range(CROWD // 2):
            forget(crowded, folder, b"%06d" % number)
    failed_stores.clear()
    crowded.core.lookups = 0
    assert crowded.store_chunks() == CROWD * 6
    assert failed_stores[-1] == 0
    assert crowded.core.lookups <= 4, "folders, and no file"
    assert is_cached(crowded.path / "two/000001")


def forget(mount: Mount, folder: bytes, name: bytes) -> None:
    """FUSE_NOTIFY_INVAL_ENTRY: the kernel forgets a name, and the inode with it."""
    body = struct.pack("=QII", mount.node(folder) + 1, len(name), 0) + name + b"\0"
    os.write(mount.device, struct.pack("=IiQ", 16 + len(body), 3, 0) + body)


def test_a_helper_is_there_from_the_first_order_until_close_and_again(mount: Mount) -> None:
    assert not helpers()  # an idle mount needs none
    for _ in range(PAGE_HELPER_STARTS_MAX + 1):  # those that are ended do not count
        assert mount.store_chunks() > 0
        assert len(helpers()) == 1
        mount.pages.close()
        assert not helpers()


def test_a_helper_that_was_started_in_advance_carries_out_the_first_order(mount: Mount) -> None:
    mount.pages.prepare()
    prepared = helpers()
    mount.pages.prepare()
    assert mount.store_chunks() > 0
    assert helpers() == prepared and len(prepared) == 1


def test_a_helper_that_dies_is_replaced(mount: Mount) -> None:
    mount.store_chunks()
    killed = helpers()
    for helper in killed:
        os.kill(helper, signal.SIGKILL)
    assert killed
    while mount.store_chunks() == 0:
        pass
    mount.pages.drop(np.array([mount.node(b"page")]))
    assert not any(cached_pages(mount.path / "page"))
    assert (mount.path / "page").read_bytes() == content(b"page")


def test_a_helper_that_is_stopped_is_replaced(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "PAGE_HELPER_ORDER_S", 1)
    monkeypatch.setattr(page_cache, "PAGE_HELPER_END_S", 0.5)
    for signum in (signal.SIGKILL, signal.SIGSTOP):  # the one after the first has these limits
        mount.store_chunks()
        for helper in helpers():
            os.kill(helper, signum)
    while mount.store_chunks() == 0:
        pass
    assert (mount.path / "page").read_bytes() == content(b"page")


def test_a_mount_that_is_gone_takes_nothing(mount: Mount) -> None:
    mount.store_chunks()
    unmount(str(mount.path), lazily=True)
    # Tests that run beside this one may have copied the mount into a namespace, and keep it until they end.
    wait_for(lambda: mount.store_chunks() == 0, "no namespace has the mount", NAMESPACES_END_S)
    mount.pages.drop(np.array([mount.node(b"page")]))


def test_a_helper_that_dies_too_often_is_not_started_again(mount: Mount) -> None:
    with pytest.raises(MountError, match="hangs or died too often"):
        for _ in range(PAGE_HELPER_STARTS_MAX + 1):
            mount.store_chunks()
            for helper in helpers():
                os.kill(helper, signal.SIGKILL)


def helpers() -> list[int]:
    """The helpers that this process has started."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in own if b"page_helper" in Path(f"/proc/{pid}/cmdline").read_bytes()]
