"""What passes is tried again, in bounds; what lasts, and what is no failure of the store, is not."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, DieselfsError, NotFound, StorageFull, Unavailable
from dieselfs.telemetry.registry import Registry
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.retrying import RetryingStore, RetryPolicy, wait_before
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, ChunkStoreSuite, chunk_at

PATIENCE = RetryPolicy(tries_max=4, first_wait_s=1.0, wait_s_max=3.0, duration_s_max=20.0)


def failure(number: int | None = None) -> Unavailable:
    error = Unavailable("gone")
    error.__cause__ = OSError(number, "why") if number is not None else None
    return error


class FlakyStore(MemoryStore):
    """The next calls raise these, one each."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[DieselfsError] = []
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self._fail()
        return super().get_range(dataset_id, chunk_id, offset, length)

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        for chunk_id in super().list_chunks(dataset_id, since_s):
            self._fail()
            yield chunk_id


class Bench:
    """A retrying store over a flaky one, with a clock that only waiting moves."""

    def __init__(self, patience: RetryPolicy = PATIENCE, call_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []
        self.call_s = call_s
        self.flaky = FlakyStore()
        self.flaky.put(DATASET_ID, CHUNK_ID, [b"content"])
        self.metrics = Registry()
        self.store = RetryingStore(
            self.flaky, patience, random.Random(5), self._clock, self._sleep, self.metrics
        )

    def retries(self) -> dict[str, int]:
        """By operation."""
        return {labels[0]: value for _, labels, value in self.metrics.collect(("store.retries",))}

    def _clock(self) -> float:
        self.now_s += self.call_s
        return self.now_s

    def _sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.now_s += wait_s

    def get(self) -> bytes:
        return self.store.get_range(DATASET_ID, CHUNK_ID, 0, 7)


class TestRetryingStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> RetryingStore:
        return RetryingStore(MemoryStore(), PATIENCE, random.Random(1))


def test_a_passing_failure_is_tried_again() -> None:
    bench = Bench()
    bench.flaky.failures = [failure(), failure(errno.EIO), failure(errno.ETIMEDOUT)]
    assert bench.get() == b"content"
    assert bench.flaky.calls == 4 and bench.retries() == {"get_range": 3}
    for wait_s, full_s in zip(bench.waits_s, (1, 2, 3), strict=True):
        assert full_s / 2 <= wait_s < full_s


def test_tries_are_bounded() -> None:
    bench = Bench()
    bench.flaky.failures = [failure() for _ in range(9)]
    with pytest.raises(Unavailable):
        bench.get()
    assert bench.flaky.calls == PATIENCE.tries_max
    assert bench.retries() == {"get_range": PATIENCE.tries_max - 1}


def test_time_is_bounded() -> None:
    bench = Bench(call_s=9.0)
    bench.flaky.failures = [failure() for _ in range(9)]
    with pytest.raises(Unavailable):
        bench.get()
    assert bench.flaky.calls == 2


@pytest.mark.parametrize(
    "error",
    [
        failure(errno.EACCES),
        failure(errno.EROFS),
        NotFound("x"),
        Damaged("x"),
        StorageFull("x"),
    ],
)
def test_what_lasts_is_not_tried_again(error: DieselfsError) -> None:
    bench = Bench()
    bench.flaky.failures = [error]
    with pytest.raises(type(error)):
        bench.get()
    assert bench.flaky.calls == 1 and bench.waits_s == [] and bench.retries() == {}


def test_a_listing_goes_on_where_it_broke_off() -> None:
    bench = Bench()
    bench.flaky.delete(DATASET_ID, CHUNK_ID)
    chunk_ids = [chunk_at(time_s, number) for time_s in range(5) for number in range(3)]
    for chunk_id in chunk_ids:
        bench.flaky.put(DATASET_ID, chunk_id, [b""])
    listed = []
    for chunk_id in bench.store.list_chunks(DATASET_ID):
        listed.append(chunk_id)
        bench.flaky.failures = [failure()]
    assert listed == chunk_ids and bench.retries() == {"list_chunks": len(chunk_ids) - 1}


def test_waits_grow_and_those_who_failed_together_part() -> None:
    assert [wait_before(tries, PATIENCE, 0.0) for tries in (1, 2, 3, 4, 50)] == [0.5, 1.0, 1.5, 1.5, 1.5]
    assert wait_before(1, PATIENCE, 0.999) > 0.99
