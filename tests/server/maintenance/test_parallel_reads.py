"""Chunks of a slow store are read ahead, within a limit, and given in order with their errors."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count

import pytest

from dieselfs.errors import NotFound
from dieselfs_server.maintenance.parallel_reads import SLOW_READ_S, read_in_order
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from tests.conformance.chunk_store_suite import DATASET_ID, chunk_at

TIMEOUT_S = 30.0
CHUNK_IDS = [chunk_at(number) for number in range(21)]


def ticking(step_s: float) -> Callable[[], float]:
    """A clock by which each read takes `step_s`."""
    ticks = count()
    return lambda: next(ticks) * step_s


SLOW, FAST = 2 * SLOW_READ_S, SLOW_READ_S / 2


def size(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> int:
    return store.size(dataset_id, chunk_id)


@pytest.mark.parametrize("step_s", [SLOW, FAST])
def test_results_and_errors_come_in_order(step_s: float) -> None:
    store = MemoryStore()
    for number, chunk_id in enumerate(CHUNK_IDS):
        if number % 3:
            store.put(DATASET_ID, chunk_id, [bytes(number)])
    found: list[tuple[bytes, int | None]] = []
    reads = read_in_order(size, store, DATASET_ID, CHUNK_IDS, at_once=4, clock=ticking(step_s))
    for chunk_id, chunk in reads:
        try:
            found.append((chunk_id, chunk.result()))
        except NotFound:
            found.append((chunk_id, None))
    assert found == [(chunk_id, n if n % 3 else None) for n, chunk_id in enumerate(CHUNK_IDS)]


def test_after_a_slow_read_as_many_as_allowed_are_read_at_once() -> None:
    together = threading.Barrier(4)  # breaks unless four reads meet

    def meet(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> int:
        return -1 if chunk_id == CHUNK_IDS[0] else together.wait(TIMEOUT_S)

    reads = read_in_order(meet, MemoryStore(), DATASET_ID, CHUNK_IDS, at_once=4, clock=ticking(SLOW))
    assert sorted(chunk.result() for _, chunk in reads) == sorted([-1, *([0, 1, 2, 3] * 5)])


def test_no_more_are_read_than_allowed_and_none_after_the_end() -> None:
    started: list[bytes] = []

    def note(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> None:
        started.append(chunk_id)

    reads = read_in_order(note, MemoryStore(), DATASET_ID, iter(CHUNK_IDS), at_once=3, clock=ticking(SLOW))
    with closing(reads):
        for _ in range(3):
            next(reads)[1].result()
    assert set(started) <= set(CHUNK_IDS[:5])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chunks")]


def test_a_fast_store_is_read_without_threads() -> None:
    readers: set[int] = set()

    def note(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> None:
        readers.add(threading.get_ident())

    list(read_in_order(note, MemoryStore(), DATASET_ID, CHUNK_IDS, clock=ticking(FAST)))
    assert readers == {threading.get_ident()}


@pytest.mark.parametrize("step_s", [SLOW, FAST])
def test_an_error_of_the_listing_is_raised(step_s: float) -> None:
    def listing() -> Iterator[bytes]:
        yield CHUNK_IDS[0]
        raise NotFound("away")

    with pytest.raises(NotFound, match="away"):
        list(read_in_order(size, MemoryStore(), DATASET_ID, listing(), clock=ticking(step_s)))
