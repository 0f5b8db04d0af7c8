import threading
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from dieselfs.errors import Damaged, Unavailable
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs_client.ahead.residency import ChunkResidency
from dieselfs_client.arena import Arena
from dieselfs_client.flights import FAILURE_MEMORY_S
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

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        return self.source.fetch_extent(extent)


Scenario = Callable[[ChunkResidency, GatedSource], Awaitable[None]]


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
            residency = ChunkResidency(packed.snapshot, source, memory_bytes, nursery, TIMEOUT_S, at_once)
            try:
                await scenario(residency, source)
            finally:
                source.gate.set()
                nursery.cancel_scope.cancel()

    run_in_still_time(main)
    return source.source


def test_a_chunk_is_fetched_and_stays(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        assert residency.resident(1) is None
        payload = await residency.fetch(1)
        assert bytes(payload) == bytes([2]) * 500 + bytes([3]) * 500
        assert residency.resident(1) is payload
        assert await residency.fetch(1) is payload
        assert residency.resident_bytes == CHUNK_BYTES

    assert run(packed, scenario).fetched_chunks == [1]


def test_a_piece_of_a_resident_chunk(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        extent = extent_of(packed.snapshot, b"3")
        assert residency.resident_piece(extent, 10, 20) is None
        assert bytes(await residency.fetch_piece(extent, 10, 20)) == bytes([3]) * 20
        resident = residency.resident_piece(extent, 490, 10)
        assert resident is not None and bytes(resident) == bytes([3]) * 10

    run(packed, scenario)


def test_many_who_want_a_chunk_make_one_flight(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.gate.clear()
        payloads: list[memoryview] = []

        async def read() -> None:
            payloads.append(await residency.fetch(0))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            residency.prefetch(0)
            source.gate.set()
        assert len(payloads) == 5

    assert run(packed, scenario).fetched_chunks == [0]


def test_what_was_used_longest_ago_goes_first(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        await residency.fetch(0)
        await residency.fetch(1)
        residency.resident(0)
        await residency.fetch(2)
        assert [residency.resident(chunk) is not None for chunk in range(3)] == [True, False, True]
        assert residency.resident_bytes == 2 * CHUNK_BYTES

    run(packed, scenario, memory_bytes=2 * CHUNK_BYTES)


def test_room_is_made_before_a_chunk_is_fetched(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        await residency.fetch(0)
        await residency.fetch(1)
        source.gate.clear()
        residency.prefetch(2)
        await trio.testing.wait_all_tasks_blocked()
        assert residency.resident_bytes == CHUNK_BYTES

    run(packed, scenario, memory_bytes=2 * CHUNK_BYTES)


def test_chunks_ahead_take_half_of_the_budget_at_most(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.gate.clear()
        for chunk in range(4):
            residency.prefetch(chunk)
        source.gate.set()
        for chunk in range(2):
            await residency.fetch(chunk)
        await trio.testing.wait_all_tasks_blocked()

    assert sorted(run(packed, scenario, memory_bytes=4 * CHUNK_BYTES).fetched_chunks) == [0, 1]


def test_a_chunk_larger_than_the_budget_is_served_all_the_same(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        for chunk in range(4):
            assert len(await residency.fetch(chunk)) == CHUNK_BYTES
        assert residency.resident_bytes == CHUNK_BYTES

    run(packed, scenario, memory_bytes=CHUNK_BYTES // 2)


def test_a_reader_who_gives_up_leaves_the_flight_in_the_air(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.gate.clear()
        with time_flies(), trio.move_on_after(0.01) as scope:
            await residency.fetch(0)
        assert scope.cancelled_caught
        source.gate.set()
        await residency.fetch(0)

    assert run(packed, scenario).fetched_chunks == [0]


def test_a_flight_that_takes_too_long_is_not_waited_for_twice(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.gate.clear()
        began_s = trio.current_time()
        for _ in range(2):
            with time_flies(), pytest.raises(Unavailable, match=f"did not come within {TIMEOUT_S} s"):
                await residency.fetch(0)
            assert trio.current_time() - began_s == pytest.approx(TIMEOUT_S), "one limit, not two"
        source.gate.set()
        await residency.fetch(1)
        while residency.resident(0) is None:  # what came too late is kept; nobody asked for it a second time
            await trio.lowlevel.checkpoint()

    assert sorted(run(packed, scenario).fetched_chunks) == [0, 1]


def test_a_reader_of_a_node_that_stops_is_told_so(packed: PackedDataset) -> None:
    source = GatedSource(packed.source())
    reasons: list[str] = []

    async def read(residency: ChunkResidency) -> None:
        with pytest.raises(Unavailable) as caught:
            await residency.fetch(0)
        reasons.append(str(caught.value))

    async def main() -> None:
        async with trio.open_nursery() as readers:
            async with trio.open_nursery() as nursery:
                residency = ChunkResidency(packed.snapshot, source, 1 << 20, nursery, TIMEOUT_S, 8)
                readers.start_soon(read, residency)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            source.gate.set()

    run_in_still_time(main)
    assert len(reasons) == 1
    assert "this node is stopping" in reasons[0]


def test_a_failure_is_remembered_for_a_moment_only(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.error = Unavailable("the server is gone")
        for _ in range(3):
            with pytest.raises(Unavailable, match="the server is gone"):
                await residency.fetch(0)
        assert source.source.fetched_chunks == [0]
        source.error = None
        with time_flies():
            await trio.sleep(FAILURE_MEMORY_S * 1.1)
        assert len(await residency.fetch(0)) == CHUNK_BYTES

    assert run(packed, scenario).fetched_chunks == [0, 0]


def test_a_bug_in_the_source_costs_one_read(packed: PackedDataset, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.error = ZeroDivisionError("oops")
        with pytest.raises(Unavailable, match="oops"):
            await residency.fetch(0)
        source.error = None
        assert len(await residency.fetch(1)) == CHUNK_BYTES

    run(packed, scenario)
    assert "ZeroDivisionError" in caplog.text


def test_damage_touches_only_the_file_it_lies_in(
    packed: PackedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = extent_of(packed.snapshot, b"2"), extent_of(packed.snapshot, b"3")

    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.source.payloads[1][600] ^= 1
        for _ in range(2):
            assert bytes(await residency.fetch_piece(good, 100, 50)) == bytes([2]) * 50
            with pytest.raises(Damaged, match="payload offset 500"):
                await residency.fetch_piece(bad, 0, 10)
        resident = residency.resident_piece(good, 0, 10)
        assert resident is not None and bytes(resident) == bytes([2]) * 10
        with pytest.raises(Damaged):
            await residency.fetch(1)
        residency.prefetch(1)

    source = run(packed, scenario)
    assert source.fetched_chunks == [1]
    assert source.fetched_extents.count(good) == 1
    name = source.chunk_names[1]
    assert caplog.text.count(name) == 1


def test_no_more_fetches_at_once_than_allowed(packed: PackedDataset) -> None:
    async def scenario(residency: ChunkResidency, source: GatedSource) -> None:
        source.gate.clear()
        for chunk in range(4):
            residency.prefetch(chunk)
        await trio.to_thread.run_sync(source.arrivals.acquire)
        await trio.to_thread.run_sync(source.arrivals.acquire)
        await trio.testing.wait_all_tasks_blocked()
        assert not source.arrivals.acquire(blocking=False)
        source.gate.set()
        for chunk in range(4):
            await residency.fetch(chunk)

    assert sorted(run(packed, scenario, at_once=2).fetched_chunks) == [0, 1, 2, 3]


def test_chunks_lie_in_the_arena_as_long_as_it_has_room(packed: PackedDataset) -> None:
    arena = Arena(CHUNK_BYTES, 2)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            residency = ChunkResidency(packed.snapshot, packed.source(), 1 << 20, nursery, arena=arena)
            payloads = [await residency.fetch(chunk) for chunk in range(4)]
            assert [arena.place(payload) is not None for payload in payloads] == [True, True, False, False]
            for chunk, payload in enumerate(payloads):
                assert bytes(payload) == packed.source().fetch_chunk(chunk)
            nursery.cancel_scope.cancel()

    trio.run(main)
