"""What a server does without one of the optimisations: more reads of the store, or more of them at a time."""

from dataclasses import replace
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest
import trio

from bench.papers.request_path import PathExecutor, RequestPath
from dieselfs.limits import MIB
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import Bounds, LimitedStore, StoreWrapper
from lab.counting_store import CountingStore
from tests.support.chunks import CHUNK_ID, DATASET_ID, chunk_object, sample_fields

PAYLOAD = bytes(range(256)) * (2 * MIB // 256)
USUAL = RequestPath()
MET_S, NOT_MET_S = 8.0, 0.2
"""Reads that meet do so at once; others are waited for."""


def filled() -> MemoryStore:
    store = MemoryStore()
    store.put(DATASET_ID, CHUNK_ID, [chunk_object(sample_fields(PAYLOAD), PAYLOAD)])
    return store


def test_a_server_has_the_bounds_of_its_stores() -> None:
    assert USUAL.bounds == Bounds()
    assert replace(USUAL, is_staggering=False).bounds.large_reads_max == Bounds().reads_max
    assert replace(USUAL, is_bounded=False).bounds.large_reads_max == Bounds().large_reads_max


async def test_without_coalescing_each_range_is_a_read() -> None:
    wanted = np.array([(place, 100) for place in range(0, 2_000, 100)], np.int64)
    reads = {}
    for path in (USUAL, replace(USUAL, is_coalescing=False)):
        store = CountingStore(filled())
        parts = await PathExecutor(path, store).ranges(DATASET_ID, CHUNK_ID, wanted)
        assert [bytes(part) for part in parts] == [PAYLOAD[o : o + n] for o, n in wanted.tolist()]
        reads[path] = store.metrics.numbers()["store.reads"] - 1  # that of the preamble
    assert [*reads.values()] == [1, len(wanted)]


class Meeting(StoreWrapper):
    """Reads of at least `size_bytes` wait for each other until `count` are there."""

    def __init__(self, count: int, size_bytes: int, wait_s: float) -> None:
        super().__init__(filled())
        self._barrier, self._size_bytes, self._wait_s = Barrier(count), size_bytes, wait_s
        self.has_met = False

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        if length >= self._size_bytes:
            try:
                self._barrier.wait(self._wait_s)
                self.has_met = True
            except BrokenBarrierError:
                pass
        return super().get_range(dataset_id, chunk_id, offset, length)


@pytest.mark.parametrize(
    ("path", "size_bytes", "meet"),
    [
        (USUAL, MIB, Bounds().large_reads_max),
        (replace(USUAL, is_staggering=False), MIB, Bounds().reads_max),
        (USUAL, MIB // 2, Bounds().reads_max),
        (replace(USUAL, is_bounded=False), MIB // 2, Bounds().reads_max + 1),
    ],
)
async def test_how_many_reads_are_made_at_a_time(path: RequestPath, size_bytes: int, meet: int) -> None:
    apart = replace(path, is_coalescing=False)
    for count, is_met in ((meet, True), (meet + 1, not path.is_bounded)):
        store = Meeting(count, size_bytes, MET_S if is_met else NOT_MET_S)
        executor = PathExecutor(apart, LimitedStore(store, apart.bounds))
        await executor.preamble(DATASET_ID, CHUNK_ID)
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                whole = np.array([(0, size_bytes)], np.int64)
                nursery.start_soon(executor.ranges, DATASET_ID, CHUNK_ID, whole)
        assert store.has_met == is_met
