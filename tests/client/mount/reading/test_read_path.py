import random
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dieselfs.chunk.blocks import BLOCK_BYTES
from dieselfs.errors import Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.limits import KIB, MIB
from dieselfs.prefetch.extent_table import Extents
from dieselfs.snapshot.reader import ExtentRef
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.reading import read_path
from dieselfs_client.mount.reading.core import ROOT_INODE, MountCore
from dieselfs_client.mount.reading.read_path import (
    LATE_S,
    RUN_BYTES,
    RUN_REACH_BYTES,
    WINDOW_BYTES,
    LateReads,
    ReadPath,
    SequentialReads,
)
from dieselfs_client.prefetch.prefetcher import Prefetcher
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.no_read_ahead import plain_reads

FILE_BYTES = 100_000
CHUNK_FILES = 10
FILES = 60


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%02d" % n, 0o100644, 0, bytes([n]) * FILE_BYTES) for n in range(FILES)]
    return pack_entries(entries, chunk_bytes=CHUNK_FILES * FILE_BYTES)


class NoPages:
    """A page cache that keeps nothing."""

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        return 0

    def uncover(self, nodes: npt.NDArray[np.integer]) -> None:
        self.drop(nodes)

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        pass

    def drop_parts(self, extents: Extents) -> None:
        pass

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        return np.zeros(len(extents), np.bool_)


Scenario = Callable[[ReadPath, MemoryChunkSource], Awaitable[None]]


def run(
    packed: PackedDataset,
    scenario: Scenario,
    kept_chunks: int = 0,
    timeout_s: float = 10,
    kind: type[MemoryChunkSource] = MemoryChunkSource,
    clock: trio.abc.Clock | None = None,
) -> MemoryChunkSource:
    source = kind(packed.snapshot, packed.source().payloads)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            chunk_cache = ChunkCache(packed.snapshot, source, 3 * CHUNK_FILES * FILE_BYTES, nursery)
            page_bytes = kept_chunks * CHUNK_FILES * 102_400
            allotment = Allotment(0, 0, 0, 0, page_bytes)
            prefetcher = Prefetcher(packed.snapshot, chunk_cache, source, NoPages(), allotment, nursery)
            reads = ReadPath(MountCore(packed.snapshot), chunk_cache, prefetcher, timeout_s)
            with trio.fail_after(20):
                await scenario(reads, source)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    return source


def inode(packed: PackedDataset, number: int) -> int:
    return packed.snapshot.require(b"%02d" % number) + 1


def test_what_is_not_there_is_fetched_and_then_at_hand(packed: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        assert reads.at_once(inode(packed, 3), 0, 10) is None
        assert b"".join(await reads.fetch(inode(packed, 3), 0, 10)) == bytes([3]) * 10
        assert b"".join(reads.at_once(inode(packed, 3), 99_990, 100) or []) == bytes([3]) * 10
        assert b"".join(reads.at_once(inode(packed, 4), 0, 5) or []) == bytes([4]) * 5, (
            "its neighbour came along"
        )
        assert (
            reads.metrics.as_dict()["reads"]["at_once"],
            reads.metrics.as_dict()["reads"]["waited_s"]["count"],
            reads.metrics.as_dict()["reads"]["failed"],
        ) == (2, 1, 0)
        assert reads.metrics.as_dict()["reads"]["waited_s"]["sum"] > 0

    assert run(packed, scenario, kept_chunks=1).fetched_chunks == [0]


def test_files_at_random_do_not_bring_whole_chunks_where_nothing_can_be_kept(packed: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for number in (5, 15, 25, 35):
            assert b"".join(await reads.fetch(inode(packed, number), 0, 10)) == bytes([number]) * 10

    source = run(packed, scenario)
    assert not source.fetched_chunks
    assert len(source.fetched_extents) == 4


def test_much_of_a_chunk_brings_all_of_it(packed: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for number in range(CHUNK_FILES):
            if reads.at_once(inode(packed, number), 0, 10) is None:
                await reads.fetch(inode(packed, number), 0, 10)

    source = run(packed, scenario)
    assert source.fetched_chunks == [0]
    assert len(source.fetched_extents) <= 2


def test_what_is_kept_is_fetched_whole_at_the_first_touch(packed: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for number in range(FILES):
            if reads.at_once(inode(packed, number), 0, 10) is None:
                await reads.fetch(inode(packed, number), 0, 10)

    assert run(packed, scenario, kept_chunks=6).fetched_chunks == [0, 1, 2, 3, 4, 5]


class StuckSource(MemoryChunkSource):
    """Brings no extent before the gate is open."""

    gate = threading.Event()

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        self.gate.wait(20)
        return super().fetch_extent(extent)


def test_what_does_not_come_in_time_is_an_error_that_says_so(packed: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        with pytest.raises(Unavailable, match=r"did not arrive within 0\.05 s"):
            await reads.fetch(inode(packed, 5), 0, 10)
        assert reads.metrics.as_dict()["reads"]["failed"] == 1
        StuckSource.gate.set()

    run(packed, scenario, timeout_s=0.05, kind=StuckSource)


def test_reads_that_wait_are_counted_before_they_end(packed: PackedDataset) -> None:
    """Else a mount whose server is away would look idle."""

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        StuckSource.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads.fetch, inode(packed, 5), 0, 10)
            await trio.testing.wait_all_tasks_blocked()
            assert reads.metrics.as_dict()["reads"]["in_progress"] == 1
            StuckSource.gate.set()
        assert reads.metrics.as_dict()["reads"]["in_progress"] == 0

    run(packed, scenario, kind=StuckSource)


def test_the_second_request_of_the_kernel_for_a_late_page_fails_at_once(
    packed: PackedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch is still in flight, so the caches know of no failure yet."""
    monkeypatch.setattr(read_path, "SLOW_FAILURE_S", 0.0)

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        StuckSource.gate.clear()
        with pytest.raises(Unavailable, match="did not arrive within"):
            await reads.fetch(inode(packed, 5), 0, 8192)
        with pytest.raises(Unavailable, match="the read before"), trio.fail_after(0):
            await reads.fetch(inode(packed, 5), 4096, 4096)
        assert reads.metrics.as_dict()["reads"]["failed"] == 2
        StuckSource.gate.set()

    run(packed, scenario, timeout_s=0.05, kind=StuckSource)


def test_late_reads_are_forgotten_and_concern_no_other_bytes() -> None:
    late = LateReads(reads_max=2)
    late.note(7, 100, 200, now_s=10.0)
    assert late.covers(7, 199, 300, now_s=10.0 + LATE_S)
    assert not late.covers(7, 200, 300, now_s=11.0)
    assert not late.covers(7, 0, 100, now_s=11.0)
    assert not late.covers(8, 100, 200, now_s=11.0)
    assert not late.covers(7, 100, 200, now_s=10.1 + LATE_S)
    for inode in (1, 2, 3):
        late.note(inode, 0, 10, now_s=20.0)
    assert [late.covers(inode, 0, 10, now_s=20.0) for inode in (1, 2, 3)] == [False, True, True]


def test_damage_touches_only_the_file_that_it_lies_in(packed: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        source.payloads[0][5 * FILE_BYTES] ^= 1
        for number in range(CHUNK_FILES):
            if number == 5:
                with pytest.raises(Damaged):
                    await reads.fetch(inode(packed, number), 0, 10)
            else:
                assert b"".join(await reads.fetch(inode(packed, number), 0, 10)) == bytes([number]) * 10

    run(packed, scenario, kept_chunks=1)


class ShortSource(MemoryChunkSource):
    """Breaks its promise: chunks without their last byte."""

    def fetch_chunk(self, chunk: int) -> bytes:
        return super().fetch_chunk(chunk)[:-1]


def test_a_chunk_that_is_too_short_gives_no_short_read(packed: PackedDataset) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source = ShortSource(packed.snapshot, packed.source().payloads)
            chunk_cache = ChunkCache(packed.snapshot, source, 1 << 24, nursery)
            reads = plain_reads(MountCore(packed.snapshot), chunk_cache)
            last = CHUNK_FILES - 1
            assert b"".join(await reads.fetch(inode(packed, 0), 0, 10)) == bytes(10)
            for _ in range(2):
                with pytest.raises(Damaged, match="too short"):
                    await reads.fetch(inode(packed, last), 0, FILE_BYTES)
            with pytest.raises(Damaged, match="too short"):
                reads.at_once(inode(packed, last), 0, FILE_BYTES)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_what_is_no_file_is_refused(packed: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        with pytest.raises(NotFound):
            reads.at_once(10_000, 0, 10)
        with pytest.raises(InvalidInput):
            reads.at_once(ROOT_INODE, 0, 10)

    run(packed, scenario)


def test_a_read_continues_where_the_last_one_of_the_file_ended() -> None:
    order = SequentialReads()
    assert not order.continues(7, 0, 100)
    assert order.continues(7, 100, 200)
    assert not order.continues(7, 500, 600)
    assert not order.continues(7, 600, 700), "too little for a run in the middle"
    assert order.continues(7, 700, 500 + RUN_BYTES)
    assert not order.continues(7, 100, 500 + RUN_BYTES)


def test_a_file_copied_in_backward_steps_is_read_in_sequence() -> None:
    """`memcpy` from a mapping may begin at the end of each record."""
    order, step, record = SequentialReads(), 64 * KIB, MIB

    def copied(start: int) -> list[bool]:
        return [
            order.continues(7, start + place, start + place + step)
            for place in reversed(range(0, record, step))
        ]

    before = [copied(start) for start in range(0, RUN_REACH_BYTES, record)]
    assert not any(any(record) for record in before)
    after = [copied(start) for start in range(RUN_REACH_BYTES, 4 * RUN_REACH_BYTES, record)]
    assert all(first and not any(others) for first, *others in after), "each record reaches further, once"


@pytest.mark.parametrize("around", [64 * KIB, MIB])
def test_reads_at_random_places_are_no_sequence(around: int) -> None:
    """The kernel asks for what is around a page, and then for the page alone."""
    order, chance = SequentialReads(), random.Random(1)
    for _ in range(1000):
        offset = chance.randrange(50 * MIB // around) * around
        assert not order.continues(7, offset, offset + around)
        assert not order.continues(7, offset + 4 * KIB, offset + 8 * KIB)


def test_files_do_not_disturb_each_other() -> None:
    order = SequentialReads()
    order.continues(1, 0, 10)
    order.continues(2, 0, 20)
    assert order.continues(1, 10, 20)
    assert order.continues(2, 20, 30)


def test_what_was_read_longest_ago_is_forgotten() -> None:
    order = SequentialReads(files_max=2)
    for inode in (1, 2, 3):
        order.continues(inode, 0, 10)
    assert not order.continues(1, 10, 20)
    assert order.continues(3, 10, 20)


LARGE_BYTES = 3 * MIB
"""Of a file in chunks of a MiB."""


@pytest.fixture(scope="module")
def large() -> PackedDataset:
    return pack_entries(
        [TreeEntry(b"large", 0o100644, 0, random.Random(1).randbytes(LARGE_BYTES))], chunk_bytes=MIB
    )


async def read(reads: ReadPath, offset: int, size: int) -> bytes:
    found = reads.at_once(LARGE_INODE, offset, size)
    return b"".join(await reads.fetch(LARGE_INODE, offset, size) if found is None else found)


LARGE_INODE = ROOT_INODE + 1


ROOM_FOR_ONE = 2
"""Of a large file, which has three chunks; in chunks of small files."""
ROOM_FOR_ALL = 4


@pytest.mark.parametrize(
    "kept_chunks", [0, ROOM_FOR_ONE], ids=["nothing is pinned", "a part would be pinned"]
)
def test_small_reads_of_a_large_file_fetch_blocks_and_keep_them(
    large: PackedDataset, kept_chunks: int
) -> None:
    whole = random.Random(1).randbytes(LARGE_BYTES)
    offsets = [1_000_000, 20_000, 2_500_000, 1_500_000]

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for _ in range(3):
            for offset in offsets:
                assert await read(reads, offset, 4096) == whole[offset : offset + 4096]
        assert reads.metrics.as_dict()["reads"]["from_blocks"] == 2 * len(offsets)

    source = run(large, scenario, kept_chunks=kept_chunks)
    assert not source.fetched_chunks and not source.fetched_extents
    assert len(source.fetched_blocks) == len(set(source.fetched_blocks)) <= 2 * len(offsets)


def test_small_reads_fetch_windows_and_later_the_chunk_if_the_dataset_fits() -> None:
    whole = random.Random(1).randbytes(LARGE_BYTES)
    packed = pack_entries([TreeEntry(b"large", 0o100644, 0, whole)], chunk_bytes=LARGE_BYTES)

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for offset in (300_000, 310_000, 262_144, 1_000_000, 2_000_000):
            assert await read(reads, offset, 4096) == whole[offset : offset + 4096]

    source = run(packed, scenario, kept_chunks=2 * ROOM_FOR_ALL)
    assert len(source.fetched_blocks) == 2 * WINDOW_BYTES // BLOCK_BYTES
    assert source.fetched_chunks == [0], "the third window would be a quarter of it"


def test_what_the_kernel_reads_around_a_page_does_not_bring_the_chunk_at_once() -> None:
    whole = random.Random(1).randbytes(LARGE_BYTES)
    packed = pack_entries([TreeEntry(b"large", 0o100644, 0, whole)], chunk_bytes=LARGE_BYTES)

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        assert await read(reads, MIB, MIB) == whole[MIB : 2 * MIB]
        assert not source.fetched_chunks
        await read(reads, MIB // 2, MIB // 4)

    source = run(packed, scenario, kept_chunks=2 * ROOM_FOR_ALL)
    assert source.fetched_chunks == [0] and source.fetched_blocks


def test_a_small_read_at_the_start_of_a_file_fetches_its_chunk_if_the_dataset_fits(
    large: PackedDataset,
) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        await read(reads, 0, 4096)

    source = run(large, scenario, kept_chunks=ROOM_FOR_ALL)
    assert source.fetched_chunks == [0] and not source.fetched_blocks


def test_small_reads_of_what_the_kernel_has_just_reclaimed_fetch_blocks(large: PackedDataset) -> None:
    """The clock stands still, so the first chunk, which left the memory of the daemon, was pushed just now."""

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for offset in (0, MIB, 2 * MIB):
            await read(reads, offset, MIB // 2)
        assert not source.fetched_blocks
        await read(reads, 5, 4096)

    source = run(large, scenario, kept_chunks=ROOM_FOR_ALL, clock=trio.testing.MockClock())
    assert source.fetched_chunks == [0, 1, 2]
    assert source.fetched_blocks and not source.fetched_extents


@pytest.mark.parametrize(
    ("kept_chunks", "share"), [(ROOM_FOR_ONE, 0.25), (0, 1.0)], ids=["it stays", "others evict it"]
)
def test_much_of_a_large_extent_brings_its_chunk(
    large: PackedDataset, kept_chunks: int, share: float
) -> None:
    """Each request for a block counts as half a block more."""
    whole = random.Random(1).randbytes(LARGE_BYTES)

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for offset in random.Random(2).sample(range(0, MIB, BLOCK_BYTES), MIB // BLOCK_BYTES):
            assert await read(reads, offset, BLOCK_BYTES) == whole[offset : offset + BLOCK_BYTES]

    source = run(large, scenario, kept_chunks=kept_chunks)
    assert source.fetched_chunks == [0]
    assert len(source.fetched_blocks) == int(share * MIB / BLOCK_BYTES / 1.5)


def test_a_large_file_that_is_read_from_its_start_comes_in_chunks(large: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for offset in range(0, LARGE_BYTES, 128 * KIB):
            await read(reads, offset, 128 * KIB)

    source = run(large, scenario)
    assert sorted(source.fetched_chunks) == [0, 1, 2]
    assert len(source.fetched_blocks) <= 128 * KIB // BLOCK_BYTES


def test_blocks_of_a_damaged_chunk_are_not_trusted(large: PackedDataset) -> None:
    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        source.payloads[1][-1] ^= 1
        with pytest.raises(Damaged):
            await read(reads, MIB + 5, 4096)
        assert await read(reads, 5, 4096) == random.Random(1).randbytes(LARGE_BYTES)[5:4101]
        source.payloads[1][-1] ^= 1

    run(large, scenario)


@given(
    st.lists(st.tuples(st.integers(0, LARGE_BYTES - 1), st.integers(1, 300_000)), min_size=1, max_size=12),
    st.integers(0, 11),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reads_of_any_ranges_are_those_of_the_source(
    large: PackedDataset, ranges: list[tuple[int, int]], kept_chunks: int
) -> None:
    whole = random.Random(1).randbytes(LARGE_BYTES)

    async def scenario(reads: ReadPath, source: MemoryChunkSource) -> None:
        for offset, size in ranges:
            assert await read(reads, offset, size) == whole[offset : offset + size]

    run(large, scenario, kept_chunks=kept_chunks)
