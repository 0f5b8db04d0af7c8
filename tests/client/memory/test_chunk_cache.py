import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator

import pytest
import trio
import trio.testing

from dieselfs.chunk.segment import Segment
from dieselfs.errors import Damaged, DieselfsError, NoRoom, Unavailable
from dieselfs.limits import PEER_PATIENCE_S
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.interface import Arrival, Wanted
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.memory.node_cache import NodeCache
from dieselfs_client.memory.trio_cache import FAILURE_MEMORY_S
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.still_time import run_in_still_time, time_flies

CHUNK_BYTES = 1000
FILES = 8
"""Two files to a chunk: four chunks."""
TIMEOUT_S = 10


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%d" % i, 0o100644, 0, bytes([i]) * (CHUNK_BYTES // 2)) for i in range(FILES)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


def extent_of(snapshot: Snapshot, path: bytes) -> ExtentRef:
    return snapshot.extents(snapshot.require(path))[0]


class GatedSource:
    """Holds every fetch until it is let through, and can be told to fail."""

    def __init__(self, source: MemoryChunkSource) -> None:
        self.source = source
        self.gate = threading.Event()
        self.arrivals = threading.Semaphore(0)
        self.error: Exception | None = None

    def fetch_chunk(self, chunk: int) -> bytes:
        self.arrivals.release()
        self.gate.wait(10)
        if self.error is not None:
            self.source.fetched_chunks.append(chunk)
            raise self.error
        return self.source.fetch_chunk(chunk)

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        destination[:] = self.fetch_chunk(chunk)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        return self.source.fetch_many(wanted)

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        return self.source.fetch_blocks(chunk, first, end)

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self.source.together(chunks)


Scenario = Callable[[ChunkCache, GatedSource], Awaitable[None]]


def run(
    packed: PackedDataset,
    scenario: Scenario,
    memory_bytes: int = 1 << 20,
    at_once: int = 8,
) -> MemoryChunkSource:
    """Play `scenario` with the gate open; returns the source, which counted."""
    source = GatedSource(packed.source())
    source.gate.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            chunk_cache = ChunkCache(packed.snapshot, source, memory_bytes, nursery, TIMEOUT_S, at_once)
            try:
                await scenario(chunk_cache, source)
            finally:
                source.gate.set()
                nursery.cancel_scope.cancel()

    run_in_still_time(main)
    return source.source


def test_a_chunk_is_fetched_and_stays(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        assert chunk_cache.held(1) is None
        payload = await chunk_cache.fetch(1)
        assert bytes(payload) == bytes([2]) * 500 + bytes([3]) * 500
        assert chunk_cache.held(1) is payload
        assert await chunk_cache.fetch(1) is payload
        assert chunk_cache.policy.evictable_bytes == CHUNK_BYTES

    assert run(packed, scenario).fetched_chunks == [1]


def test_an_extent_of_a_resident_chunk(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        extent = extent_of(packed.snapshot, b"3")
        assert chunk_cache.held_extent(extent, 10, 20) is None
        await chunk_cache.fetch(extent.chunk)
        held = chunk_cache.held_extent(extent, 10, 20)
        assert held is not None and bytes(held) == bytes([3]) * 20
        resident = chunk_cache.held_extent(extent, 490, 10)
        assert resident is not None and bytes(resident) == bytes([3]) * 10

    run(packed, scenario)


def test_many_who_want_a_chunk_make_one_flight(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.gate.clear()
        payloads: list[memoryview] = []

        async def read() -> None:
            payloads.append(await chunk_cache.fetch(0))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            chunk_cache.prefetch(0)
            source.gate.set()
        assert len(payloads) == 5

    assert run(packed, scenario).fetched_chunks == [0]


def test_what_was_used_longest_ago_goes_first(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        await chunk_cache.fetch(0)
        await chunk_cache.fetch(1)
        chunk_cache.held(0)
        await chunk_cache.fetch(2)
        assert [chunk_cache.held(chunk) is not None for chunk in range(3)] == [True, False, True]
        assert chunk_cache.policy.evictable_bytes == 2 * CHUNK_BYTES

    run(packed, scenario, memory_bytes=2 * CHUNK_BYTES)


def test_room_is_made_before_a_chunk_is_fetched(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        await chunk_cache.fetch(0)
        await chunk_cache.fetch(1)
        source.gate.clear()
        chunk_cache.prefetch(2)
        await trio.testing.wait_all_tasks_blocked()
        assert chunk_cache.policy.evictable_bytes == CHUNK_BYTES

    run(packed, scenario, memory_bytes=2 * CHUNK_BYTES)


def test_chunks_ahead_take_half_of_the_budget_at_most(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.gate.clear()
        for chunk in range(4):
            chunk_cache.prefetch(chunk)
        source.gate.set()
        for chunk in range(2):
            await chunk_cache.fetch(chunk)
        await trio.testing.wait_all_tasks_blocked()

    assert sorted(run(packed, scenario, memory_bytes=4 * CHUNK_BYTES).fetched_chunks) == [0, 1]


def test_a_chunk_larger_than_the_budget_is_served_all_the_same(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        for chunk in range(4):
            assert len(await chunk_cache.fetch(chunk)) == CHUNK_BYTES
        assert chunk_cache.policy.evictable_bytes == CHUNK_BYTES

    run(packed, scenario, memory_bytes=CHUNK_BYTES // 2)


def test_a_reader_who_gives_up_leaves_the_flight_in_the_air(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.gate.clear()
        with time_flies(), trio.move_on_after(0.01) as scope:
            await chunk_cache.fetch(0)
        assert scope.cancelled_caught
        source.gate.set()
        await chunk_cache.fetch(0)

    assert run(packed, scenario).fetched_chunks == [0]


def test_a_flight_that_takes_too_long_is_not_waited_for_twice(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.gate.clear()
        began_s = trio.current_time()
        for _ in range(2):
            with time_flies(), pytest.raises(Unavailable, match=f"did not arrive within {TIMEOUT_S} s"):
                await chunk_cache.fetch(0)
            assert trio.current_time() - began_s == pytest.approx(TIMEOUT_S), "one limit, not two"
        source.gate.set()
        await chunk_cache.fetch(1)
        while chunk_cache.held(0) is None:  # what came too late is kept; nobody asked for it a second time
            await trio.lowlevel.checkpoint()

    assert sorted(run(packed, scenario).fetched_chunks) == [0, 1]


def test_a_reader_of_a_node_that_stops_is_told_so(packed: PackedDataset) -> None:
    source = GatedSource(packed.source())
    reasons: list[str] = []

    async def read(chunk_cache: ChunkCache) -> None:
        with pytest.raises(Unavailable) as caught:
            await chunk_cache.fetch(0)
        reasons.append(str(caught.value))

    async def main() -> None:
        async with trio.open_nursery() as readers:
            async with trio.open_nursery() as nursery:
                chunk_cache = ChunkCache(packed.snapshot, source, 1 << 20, nursery, TIMEOUT_S, 8)
                readers.start_soon(read, chunk_cache)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            source.gate.set()

    run_in_still_time(main)
    assert len(reasons) == 1
    assert "this node is stopping" in reasons[0]


def test_a_failure_is_remembered_for_a_moment_only(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.error = Unavailable("the server is gone")
        for _ in range(3):
            with pytest.raises(Unavailable, match="the server is gone"):
                await chunk_cache.fetch(0)
        assert source.source.fetched_chunks == [0]
        source.error = None
        with time_flies():
            await trio.sleep(FAILURE_MEMORY_S * 1.1)
        assert len(await chunk_cache.fetch(0)) == CHUNK_BYTES

    assert run(packed, scenario).fetched_chunks == [0, 0]


def test_a_bug_in_the_source_costs_one_read(packed: PackedDataset, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.error = ZeroDivisionError("oops")
        with pytest.raises(Unavailable, match="oops"):
            await chunk_cache.fetch(0)
        source.error = None
        assert len(await chunk_cache.fetch(1)) == CHUNK_BYTES

    run(packed, scenario)
    assert "ZeroDivisionError" in caplog.text


def test_damage_touches_only_the_file_it_lies_in(
    packed: PackedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = extent_of(packed.snapshot, b"2"), extent_of(packed.snapshot, b"3")

    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.source.payloads[1][600] ^= 1
        for _ in range(2):
            with pytest.raises(Damaged):
                await chunk_cache.fetch(1)
            assert bytes(await chunk_cache.fetch(good)) == bytes([2]) * 500
            with pytest.raises(Damaged, match="payload offset 500"):
                await chunk_cache.fetch(bad)
        resident = chunk_cache.held_extent(good, 0, 10)
        assert resident is not None and bytes(resident) == bytes([2]) * 10
        chunk_cache.prefetch(1)

    source = run(packed, scenario)
    assert source.fetched_chunks == [1]
    assert source.fetched_extents.count(good) == 1
    name = source.chunk_names[1]
    assert caplog.text.count(name) == 1


def test_no_more_fetches_at_once_than_allowed(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, source: GatedSource) -> None:
        source.gate.clear()
        for chunk in range(4):
            chunk_cache.prefetch(chunk)
        await trio.to_thread.run_sync(source.arrivals.acquire)
        await trio.to_thread.run_sync(source.arrivals.acquire)
        await trio.testing.wait_all_tasks_blocked()
        assert not source.arrivals.acquire(blocking=False)
        source.gate.set()
        for chunk in range(4):
            await chunk_cache.fetch(chunk)

    assert sorted(run(packed, scenario, at_once=2).fetched_chunks) == [0, 1, 2, 3]


def test_chunks_lie_in_the_arena_as_long_as_it_has_room(packed: PackedDataset) -> None:
    buffer_pool = BufferPool(CHUNK_BYTES, 2)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            chunk_cache = ChunkCache(
                packed.snapshot, packed.source(), 1 << 20, nursery, buffer_pool=buffer_pool
            )
            payloads = [await chunk_cache.fetch(chunk) for chunk in range(4)]
            assert [buffer_pool.place(payload) is not None for payload in payloads] == [
                True,
                True,
                False,
                False,
            ]
            for chunk, payload in enumerate(payloads):
                assert bytes(payload) == packed.source().fetch_chunk(chunk)
            nursery.cancel_scope.cancel()

    trio.run(main)


# -- chunks of this node in a job ----------------------------------------------------------------------------


class OwnChunks:
    """A node cache that owns the even chunks."""

    def __init__(self, packed: PackedDataset, nursery: trio.Nursery, pinned_bytes: int = 1 << 20) -> None:
        self.source = packed.source()
        self.gate = threading.Event()
        self.gate.set()
        self.error: DieselfsError | None = None
        self.cache = NodeCache(
            packed.snapshot,
            self.fetch_segment,
            pinned_bytes,
            CHUNK_BYTES,
            nursery,
            owns=lambda chunk: chunk % 2 == 0,
        )

    def fetch_segment(self, chunk: int) -> Segment:
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        segment = Segment.create(CHUNK_BYTES)
        segment.view[:] = self.source.fetch_chunk(chunk)
        segment.seal()
        return segment


def run_in_a_job(
    packed: PackedDataset,
    scenario: Callable[[ChunkCache, OwnChunks, MemoryChunkSource], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            own, others = OwnChunks(packed, nursery), packed.source()
            chunk_cache = ChunkCache(packed.snapshot, others, 1 << 20, nursery, node_cache=lambda: own.cache)
            try:
                await scenario(chunk_cache, own, others)
            finally:
                own.gate.set()
                nursery.cancel_scope.cancel()

    run_in_still_time(main)


def test_own_chunks_are_read_where_they_lie(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, own: OwnChunks, others: MemoryChunkSource) -> None:
        payloads = [await chunk_cache.fetch(chunk) for chunk in range(4)]
        assert own.source.fetched_chunks == [0, 2] and others.fetched_chunks == [1, 3]
        assert chunk_cache.policy.evictable_bytes == 2 * CHUNK_BYTES, (
            "what the node cache holds is not held twice"
        )
        segment = own.cache.held(2)
        assert segment is not None and payloads[2].obj is segment.view.obj
        held = chunk_cache.held_extent(extent_of(packed.snapshot, b"4"), 10, 20)
        assert held is not None and held.obj is segment.view.obj and bytes(held) == bytes([4]) * 20

    run_in_a_job(packed, scenario)


def test_an_own_chunk_that_others_had_fetched_is_in_memory_at_once(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, own: OwnChunks, others: MemoryChunkSource) -> None:
        extent = extent_of(packed.snapshot, b"0")
        assert chunk_cache.held_extent(extent, 0, 10) is None
        await own.cache.fetch(0)
        assert chunk_cache.held_extent(extent, 0, 10) is not None
        chunk_cache.prefetch(2)
        assert bytes(await chunk_cache.fetch(2)) == own.source.payloads[2]
        assert own.source.fetched_chunks == [0, 2] and not others.fetched_chunks

    run_in_a_job(packed, scenario)


def test_an_own_chunk_that_does_not_come_in_time_comes_from_the_source(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, own: OwnChunks, others: MemoryChunkSource) -> None:
        own.gate.clear()
        payloads: list[memoryview] = []

        async def read() -> None:
            payloads.append(await chunk_cache.fetch(0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert not others.fetched_chunks
            with time_flies():
                await trio.sleep(PEER_PATIENCE_S)
        assert payloads == [others.payloads[0]]
        assert others.fetched_chunks == [0] and chunk_cache.policy.evictable_bytes == CHUNK_BYTES

    run_in_a_job(packed, scenario)


def test_an_own_chunk_without_room_here_comes_from_the_source(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, own: OwnChunks, others: MemoryChunkSource) -> None:
        own.error = NoRoom("Too many open files")
        assert bytes(await chunk_cache.fetch(0)) == others.payloads[0]

    run_in_a_job(packed, scenario)


def test_damage_of_an_own_chunk_touches_only_its_file(packed: PackedDataset) -> None:
    good, bad = extent_of(packed.snapshot, b"4"), extent_of(packed.snapshot, b"5")

    async def scenario(chunk_cache: ChunkCache, own: OwnChunks, others: MemoryChunkSource) -> None:
        for source in (own.source, others):
            source.payloads[2][bad.offset] ^= 1
        with pytest.raises(Damaged):
            await chunk_cache.fetch(2)
        assert bytes(await chunk_cache.fetch(good)) == bytes([4]) * 500
        with pytest.raises(Damaged, match="payload offset 500"):
            await chunk_cache.fetch(bad)

    run_in_a_job(packed, scenario)


def test_an_extent_of_an_own_chunk_is_read_in_its_segment_and_counted(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, own: OwnChunks, others: MemoryChunkSource) -> None:
        extent = extent_of(packed.snapshot, b"4")
        for _ in range(2):
            assert bytes(await chunk_cache.fetch(extent)) == bytes([4]) * 500
        assert own.source.fetched_chunks == [2] and not others.fetched_extents
        assert chunk_cache.policy.evictable_bytes == 0
        await chunk_cache.fetch(2)
        counted = own.cache.metrics.as_dict()
        assert counted["requested"]["extents"] == counted["requested"]["from_node"] == 3
        assert counted["requested"]["bytes"] == counted["requested"]["node_bytes"] == 2 * 500 + CHUNK_BYTES
        assert counted["fetches"]["ranges"] == 2 and counted["fetches"]["chunks"] == 1
        assert counted["node_cache"]["hits"] == 2

    run_in_a_job(packed, scenario)


def test_an_own_chunk_that_fails_is_counted_and_not_requested_elsewhere(packed: PackedDataset) -> None:
    async def scenario(chunk_cache: ChunkCache, own: OwnChunks, others: MemoryChunkSource) -> None:
        own.error = Unavailable("no server answers")
        with pytest.raises(Unavailable, match="no server answers"):
            await chunk_cache.fetch(2)
        assert own.cache.metrics.as_dict()["requested"]["failed"] == 1 and not others.fetched_chunks

    run_in_a_job(packed, scenario)
