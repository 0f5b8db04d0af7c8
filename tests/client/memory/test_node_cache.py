import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event
from typing import cast

import numpy as np
import pytest
import trio

from dieselfs.chunk.segment import Segment
from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import Unavailable
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import CacheOptions
from dieselfs.sources.server import ServerSource
from dieselfs_client.cache_daemon import serve_cache
from dieselfs_client.memory import node_cache as module
from dieselfs_client.memory.node_cache import NodeCache, usable_bytes
from dieselfs_client.memory.trio_cache import FAILURE_MEMORY_S
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.still_time import run_in_still_time, time_flies

CHUNKS = 8
CHUNK_BYTES = 5000


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, bytes([n]) * CHUNK_BYTES) for n in range(CHUNKS)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


class Source:
    """Makes segments, counts them, can be made to wait, and to fail."""

    def __init__(self, packed: PackedDataset) -> None:
        self._source = packed.source()
        self.fetched: list[int] = []
        self.gate = Event()
        self.gate.set()
        self.error: Exception | None = None

    def fetch(self, chunk: int) -> Segment:
        self.fetched.append(chunk)
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        segment = Segment.create(CHUNK_BYTES)
        segment.view[:] = self._source.fetch_chunk(chunk)
        segment.seal()
        return segment


Scenario = Callable[[NodeCache, Source], Awaitable[None]]


def run(packed: PackedDataset, scenario: Scenario, pinned: int = CHUNKS, evictable: int = 2) -> Source:
    source = Source(packed)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            node_cache = NodeCache(
                packed.snapshot,
                source.fetch,
                pinned * CHUNK_BYTES,
                evictable * CHUNK_BYTES,
                nursery,
                timeout_s=10,
            )
            try:
                await scenario(node_cache, source)
            finally:
                source.gate.set()
                nursery.cancel_scope.cancel()

    run_in_still_time(main)
    return source


def test_a_chunk_is_fetched_once_and_stays(packed: PackedDataset) -> None:
    async def scenario(node_cache: NodeCache, source: Source) -> None:
        for _ in range(3):
            segment = await node_cache.fetch(3)
            assert bytes(segment.view) == bytes([3]) * CHUNK_BYTES
        assert (
            node_cache.metrics.numbers()["node_cache.fetched_chunks"],
            node_cache.metrics.numbers()["node_cache.fetched_bytes"],
            node_cache.metrics.numbers()["node_cache.hits"],
        ) == (
            1,
            CHUNK_BYTES,
            2,
        )
        assert node_cache.chunks() == [3] and node_cache.policy.pinned_bytes == CHUNK_BYTES

    assert run(packed, scenario).fetched == [3]


def test_many_who_want_a_chunk_make_one_fetch(packed: PackedDataset) -> None:
    async def scenario(node_cache: NodeCache, source: Source) -> None:
        source.gate.clear()
        found = []

        async def want() -> None:
            found.append(bytes((await node_cache.fetch(1)).view[:1]))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(want)
            await trio.testing.wait_all_tasks_blocked()
            source.gate.set()
        assert found == [bytes([1])] * 20

    assert run(packed, scenario).fetched == [1]


def test_what_is_kept_stays_and_the_rest_passes_through(packed: PackedDataset) -> None:
    async def scenario(node_cache: NodeCache, source: Source) -> None:
        for _ in range(2):
            for chunk in range(CHUNKS):
                await node_cache.fetch(chunk)
        assert node_cache.chunks() == [0, 1, 2]
        assert (
            node_cache.policy.pinned_bytes == 3 * CHUNK_BYTES
            and node_cache.policy.evictable_bytes <= 2 * CHUNK_BYTES
        )
        assert node_cache.held(7) is not None and node_cache.held(4) is None

    assert run(packed, scenario, pinned=3).fetched == [*range(CHUNKS), *range(3, CHUNKS)]


def test_what_is_dropped_makes_room_and_its_readers_keep_it(packed: PackedDataset) -> None:
    async def scenario(node_cache: NodeCache, source: Source) -> None:
        view = (await node_cache.fetch(0)).view
        await node_cache.fetch(1)
        assert not node_cache.has_room(5)
        node_cache.drop([0, 1, 6])
        assert node_cache.chunks() == [] and node_cache.policy.pinned_bytes == 0
        assert node_cache.has_room(5)
        assert bytes(view) == bytes([0]) * CHUNK_BYTES

    run(packed, scenario, pinned=2)


def test_a_failure_is_told_and_forgotten_after_a_moment(packed: PackedDataset) -> None:
    async def scenario(node_cache: NodeCache, source: Source) -> None:
        source.error = Unavailable("the server is gone")
        for _ in range(3):
            with pytest.raises(Unavailable, match="the server is gone"):
                await node_cache.fetch(2)
        assert source.fetched == [2]
        source.error = None
        with time_flies():
            await trio.sleep(FAILURE_MEMORY_S * 1.2)
        await node_cache.fetch(2)

    assert run(packed, scenario).fetched == [2, 2]


def test_who_gives_up_leaves_the_fetch_in_the_air(packed: PackedDataset) -> None:
    async def scenario(node_cache: NodeCache, source: Source) -> None:
        source.gate.clear()
        with time_flies(), trio.move_on_after(0.01):
            await node_cache.fetch(2)
        source.gate.set()
        await node_cache.fetch(2)

    assert run(packed, scenario).fetched == [2]


def test_what_is_kept_in_the_place_of_another_node_takes_room_and_counts_for_nothing(
    packed: PackedDataset,
) -> None:
    async def scenario(node_cache: NodeCache, source: Source) -> None:
        limiter = trio.CapacityLimiter(1)
        for chunk in (0, 5, 6):
            await node_cache.bring(chunk, limiter)
        own = np.array([0, 1, 2, 3])
        assert node_cache.warmth(own) == Warmth(CHUNK_BYTES, 2 * CHUNK_BYTES)
        node_cache.drop([5, 6])
        assert node_cache.warmth(own) == Warmth(CHUNK_BYTES, 4 * CHUNK_BYTES)

    run(packed, scenario, pinned=4)


def test_a_node_cache_uses_no_more_memory_than_it_may_hold_chunks_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, bytes(CHUNK_BYTES)) for n in range(8)]
    snapshot = pack_entries(entries, chunk_bytes=CHUNK_BYTES).snapshot
    monkeypatch.setattr(module, "allow_descriptors", lambda: 5)
    with caplog.at_level(logging.WARNING, module.__name__):
        assert usable_bytes(5 * CHUNK_BYTES, snapshot) == 5 * CHUNK_BYTES
        assert not caplog.records
        assert usable_bytes(1 << 40, snapshot) == 5 * CHUNK_BYTES
    assert len(caplog.records) == 1
    assert usable_bytes(1 << 40, pack_entries([]).snapshot) == 1 << 40


async def test_a_cache_daemon_that_may_hold_fewer_chunks_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    snapshot = pack_entries([TreeEntry(b"a", 0o100644, 0, bytes(CHUNK_BYTES))]).snapshot
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(module, "allow_descriptors", lambda: 5)
    with caplog.at_level(logging.WARNING, module.__name__):
        source = ServerSource(cast(ServerClient, None), snapshot)
        await serve_cache(snapshot, source, CacheOptions(), on_ready=lambda: False)
    assert "limits of this process allow 5 chunks" in caplog.text
