"""A sequential reader of a large file, over a page cache that is a table of ranges."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from dieselfs.limits import KIB, MIB
from dieselfs.prefetch.extent_table import Extents
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.reading.core import ROOT_INODE, MountCore
from dieselfs_client.mount.reading.read_path import BEHIND_BYTES, ReadPath
from dieselfs_client.prefetch.budget import PUSHED_AGAIN_S
from dieselfs_client.prefetch.prefetcher import Prefetcher
from dieselfs_client.prefetch.runs import (
    RUN_AHEAD_BYTES,
    RUN_FETCHES_AT_ONCE,
    RUN_HEAD_BYTES,
    RUN_ROOM_BYTES_MIN,
)
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries

FILE_BYTES = 96 * MIB
CHUNKS = FILE_BYTES // MIB
STEP_BYTES = 128 * KIB
LARGE = ROOT_INODE + 1
CONTENT = random.Random(1).randbytes(FILE_BYTES)
CACHE_BYTES = 2 * RUN_AHEAD_BYTES + 8 * MIB
WINDOW_BYTES = 2 * RUN_ROOM_BYTES_MIN
"""Runs take half of it."""

pytestmark = pytest.mark.usefixtures("threads_take_no_time")


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"large", 0o100644, 0, CONTENT)], chunk_bytes=MIB)


@dataclass
class RangePages:
    """Checks that only true bytes are stored. `steps`: those of the file that are stored; `read`: those that programs
    find elsewhere.
    """

    steps: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    most: int = 0
    stored_bytes: int = 0

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        for place, start, length in zip(
            extents.places.tolist(), starts.tolist(), extents.lengths.tolist(), strict=True
        ):
            assert payload[start : start + length] == CONTENT[place : place + length]
            self.steps |= _steps(place, length)
            self.stored_bytes += length
        self.most = max(self.most, len(self.steps))
        return int(extents.lengths.sum())

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        self.steps.clear()

    uncover = drop

    def drop_parts(self, extents: Extents) -> None:
        for place, length in zip(extents.places.tolist(), extents.lengths.tolist(), strict=True):
            self.steps -= _steps(place, length)

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        ranges = zip(extents.places.tolist(), extents.lengths.tolist(), strict=True)
        there = self.read if of_readers else self.steps
        return np.array([not _steps(*each) <= there for each in ranges], np.bool_)


def _steps(place: int, length: int) -> set[int]:
    return set(range(-(-place // STEP_BYTES), (place + length) // STEP_BYTES))


@dataclass
class Rig:
    reads: ReadPath
    prefetcher: Prefetcher
    chunk_cache: ChunkCache
    pages: RangePages
    source: MemoryChunkSource
    requests: int = 0

    async def read(self, first: int, end: int) -> None:
        """Read as a program does: the daemon is asked for what is not in the page cache."""
        for step in range(first, end):
            if step in self.pages.steps:
                continue
            self.requests += 1
            offset = step * STEP_BYTES
            found = self.reads.at_once(LARGE, offset, STEP_BYTES)
            if found is None:
                found = await self.reads.fetch(LARGE, offset, STEP_BYTES)
            assert b"".join(found) == CONTENT[offset : offset + STEP_BYTES]
            await trio.testing.wait_all_tasks_blocked()


def run(
    packed: PackedDataset,
    scenario: Callable[[Rig], Awaitable[None]],
    window: int,
    pinned: int = 0,
    clock: trio.testing.MockClock | None = None,
) -> Rig:
    rigs: list[Rig] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source, snapshot, pages = packed.source(), packed.snapshot, RangePages()
            chunk_cache = ChunkCache(snapshot, source, CACHE_BYTES, nursery)
            allotment = Allotment(0, 0, CACHE_BYTES, window, pinned)
            prefetcher = Prefetcher(snapshot, chunk_cache, source, pages, allotment, nursery)
            reads = ReadPath(MountCore(snapshot), chunk_cache, prefetcher)
            rigs.append(Rig(reads, prefetcher, chunk_cache, pages, source))
            with trio.fail_after(60):
                await scenario(rigs[0])
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    return rigs[0]


async def all_of_it(rig: Rig) -> None:
    await rig.read(0, FILE_BYTES // STEP_BYTES)


def test_a_sequential_reader_asks_for_the_first_bytes_of_each_chunk(packed: PackedDataset) -> None:
    rig = run(packed, all_of_it, WINDOW_BYTES)
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS)), "each chunk once"
    assert rig.requests <= (CHUNKS * RUN_HEAD_BYTES + 2 * MIB) // STEP_BYTES
    assert rig.pages.stored_bytes >= FILE_BYTES - CHUNKS * RUN_HEAD_BYTES - 2 * MIB


def test_chunks_behind_the_reader_are_dropped(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        await all_of_it(rig)
        assert 0 < rig.prefetcher.budget.window_bytes <= WINDOW_BYTES // 2
        assert rig.pages.most * STEP_BYTES <= WINDOW_BYTES // 2

    run(packed, scenario, WINDOW_BYTES)


@pytest.mark.parametrize("pinned", [0, FILE_BYTES // 2])
def test_chunks_behind_the_reader_leave_the_memory_of_the_daemon(packed: PackedDataset, pinned: int) -> None:
    """Also while the chunk cache may use the window, which no plan needs."""
    held: list[int] = []

    async def scenario(rig: Rig) -> None:
        for step in range(FILE_BYTES // STEP_BYTES):
            await rig.read(step, step + 1)
            held.append(rig.chunk_cache.policy.evictable_bytes)

    run(packed, scenario, 2 * WINDOW_BYTES, pinned)
    assert max(held) <= RUN_AHEAD_BYTES + BEHIND_BYTES + 4 * MIB


def test_what_can_be_pinned_stays(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        await all_of_it(rig)
        assert rig.prefetcher.budget.pinned_bytes == FILE_BYTES and not rig.prefetcher.budget.window_bytes

    rig = run(packed, scenario, 0, FILE_BYTES)
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS)), "each chunk once"
    assert rig.requests <= (CHUNKS * RUN_HEAD_BYTES + 2 * MIB) // STEP_BYTES


def test_without_room_nothing_is_pushed(packed: PackedDataset) -> None:
    rig = run(packed, all_of_it, RUN_ROOM_BYTES_MIN)
    assert not rig.pages.stored_bytes
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS)), "each chunk once"


GROUP, LISTED_AHEAD = 8, 4
ROOM_CHUNKS = WINDOW_BYTES // MIB
STEPS = MIB // STEP_BYTES


async def in_groups(rig: Rig) -> None:
    """Parts of a file in chunk-wise order: those of GROUP chunks in any order, then those of the next ones. Each chunk
    is listed LISTED_AHEAD chunks before it is read.
    """
    order = random.Random(3)
    chunks = order.sample(range(CHUNKS), CHUNKS)
    rig.prefetcher.runs.read_ahead(chunks[:LISTED_AHEAD])
    for first in range(0, CHUNKS, GROUP):
        rig.prefetcher.runs.read_ahead(chunks[first + LISTED_AHEAD : first + LISTED_AHEAD + GROUP])
        await trio.testing.wait_all_tasks_blocked()
        steps = [chunk * STEPS + step for chunk in chunks[first : first + GROUP] for step in range(STEPS)]
        for step in order.sample(steps, len(steps)):
            await rig.read(step, step + 1)
    assert not rig.chunk_cache.policy.evictable_bytes, "the page cache has them"


@pytest.mark.parametrize(
    ("window", "pinned"), [(WINDOW_BYTES, 0), (WINDOW_BYTES, FILE_BYTES // 2), (0, FILE_BYTES)]
)
def test_what_is_listed_is_pushed_before_it_is_read(packed: PackedDataset, window: int, pinned: int) -> None:
    rig = run(packed, in_groups, window, pinned)
    assert not rig.requests, "none is asked of the daemon"
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS)), "each chunk once"
    assert rig.pages.stored_bytes == FILE_BYTES
    assert rig.pages.most <= (window + pinned) // STEP_BYTES


def test_what_is_listed_comes_in_its_order(packed: PackedDataset) -> None:
    chunks = random.Random(4).sample(range(CHUNKS), 2 * ROOM_CHUNKS // 3)

    async def scenario(rig: Rig) -> None:
        rig.prefetcher.runs.read_ahead(chunks + chunks)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.pages.steps == {chunk * STEPS + step for chunk in chunks for step in range(STEPS)}
        rig.prefetcher.runs.read_ahead(chunks)
        assert not any(map(rig.prefetcher.expects, chunks))

    rig = run(packed, scenario, WINDOW_BYTES)
    places = {chunk: place for place, chunk in enumerate(rig.source.fetched_chunks)}
    assert len(places) == len(rig.source.fetched_chunks) == len(chunks)
    assert all(abs(places[chunk] - place) <= RUN_FETCHES_AT_ONCE for place, chunk in enumerate(chunks))


def test_what_is_listed_is_pushed_again_if_the_kernel_has_reclaimed_it(packed: PackedDataset) -> None:
    lost, kept = 5, 6
    clock = trio.testing.MockClock()

    async def scenario(rig: Rig) -> None:
        for _ in range(2):
            rig.prefetcher.read_ahead([lost, kept])
            await trio.testing.wait_all_tasks_blocked()
            await rig.read(lost * STEPS, (kept + 1) * STEPS)
            rig.pages.steps.discard(lost * STEPS + 3)
            clock.jump(2 * PUSHED_AGAIN_S)
        assert not rig.requests

    rig = run(packed, scenario, 0, FILE_BYTES, clock)
    assert sorted(rig.source.fetched_chunks) == [lost, lost, kept]


def test_what_left_the_window_is_pushed_again_unless_programs_have_it(packed: PackedDataset) -> None:
    first, others = [0, 1], [*range(2, 2 + ROOM_CHUNKS)]

    async def scenario(rig: Rig) -> None:
        for listed in (first, others, first):
            rig.prefetcher.read_ahead(listed)
            await trio.testing.wait_all_tasks_blocked()
            rig.pages.read = {*range(STEPS)}

    rig = run(packed, scenario, WINDOW_BYTES)
    assert sorted(rig.source.fetched_chunks) == sorted([0, 1, 1, *others])


def test_a_reader_of_what_is_listed_waits_for_its_chunk(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        rig.prefetcher.runs.read_ahead([*range(CHUNKS)])
        assert all(map(rig.prefetcher.expects, range(CHUNKS)))
        await rig.read(FILE_BYTES // STEP_BYTES - 1, FILE_BYTES // STEP_BYTES)

    rig = run(packed, scenario, 0, FILE_BYTES)
    assert not rig.source.fetched_blocks and sorted(rig.source.fetched_chunks) == list(range(CHUNKS))


def test_random_reads_push_nothing(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        for step in random.Random(2).sample(range(1, FILE_BYTES // STEP_BYTES), 20):
            await rig.read(step, step + 1)

    assert not run(packed, scenario, WINDOW_BYTES).pages.stored_bytes


def test_a_plan_gets_the_room_of_runs(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.read(0, FILE_BYTES // STEP_BYTES // 2)
        assert rig.prefetcher.budget.window_bytes
        assert await rig.prefetcher.runs.give_back()
        assert not rig.prefetcher.budget.window_bytes and not rig.pages.steps
        assert not await rig.prefetcher.runs.give_back()

    run(packed, scenario, WINDOW_BYTES)


def test_a_reader_waits_at_a_chunk_that_is_not_pushed_yet(packed: PackedDataset) -> None:
    """Wherever its reads begin: in an image, a file begins anywhere. One that asks for what is pushed, or still to be
    pushed of the chunk before, does not wait, as the push waits for its pages.
    """
    across = MIB - 32 * KIB
    within = across + STEP_BYTES

    async def scenario(rig: Rig) -> None:
        async with rig.prefetcher.pushing:
            await rig.read(0, STEPS - 1)
            assert rig.reads.at_once(LARGE, across, STEP_BYTES) is not None
            assert rig.reads.at_once(LARGE, within, STEP_BYTES) is None
            assert rig.reads.at_once(LARGE, within + STEP_BYTES, STEP_BYTES) is not None
            assert rig.reads.is_pushing()
        found = await rig.reads.fetch(LARGE, within, STEP_BYTES)
        assert b"".join(found) == CONTENT[within : within + STEP_BYTES]
        assert rig.pages.stored_bytes, "the chunk is pushed by then"
        assert rig.reads.at_once(LARGE, FILE_BYTES, STEP_BYTES) == []
        await trio.testing.wait_all_tasks_blocked()
        assert not rig.reads.is_pushing()

    run(packed, scenario, WINDOW_BYTES)
