"""The filler copies what it is told, in its share of the time, and goes on after failures."""

from collections.abc import Iterator
from threading import Event

import pytest

from dieselfs.errors import Unavailable
from dieselfs_server.store.tier_filler import PENDING_BYTES_MAX, REFILL_PAUSE_S, TierFiller, pause_after
from tests.conformance.chunk_store_suite import chunk_at

A, B = b"a" * 16, b"b" * 16
TIMEOUT_S = 20.0


class Work:
    """What a filler was told to do. It waits before each step until `go` is set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done: list[tuple[str, bytes, int]] = []
        self.room = 100
        self.failures: list[Unavailable] = []
        self.go = Event()
        self.go.set()
        self.filler = TierFiller(self._admit, self._chunks, self._fetch, 1.0, lambda: self.now_s)

    def _note(self, kind: str, dataset_id: bytes, chunk_id: bytes) -> None:
        assert self.go.wait(TIMEOUT_S)
        self.done.append((kind, dataset_id, int.from_bytes(chunk_id[:4], "big")))
        if self.failures:
            raise self.failures.pop()

    def _admit(self, dataset_id: bytes, chunk_id: bytes, content: bytes) -> None:
        self._note("put", dataset_id, chunk_id)

    def _chunks(self, dataset_id: bytes) -> Iterator[bytes]:
        return iter([chunk_at(number) for number in range(3)])

    def _fetch(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        self.room -= 1
        if self.room < 0:
            return False
        self._note("fetch", dataset_id, chunk_id)
        return True


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.go.set()
    work.filler.close()


def fetches(dataset_id: bytes, *numbers: int) -> list[tuple[str, bytes, int]]:
    return [("fetch", dataset_id, number) for number in numbers]


def test_a_dataset_is_copied_once_in_a_while(work: Work) -> None:
    for _ in range(2):
        work.filler.want(A)
        work.filler.wait_until_idle()
    assert work.done == fetches(A, 0, 1, 2)
    work.now_s = REFILL_PAUSE_S
    work.filler.want(A)
    work.filler.wait_until_idle()
    assert len(work.done) == 6


def test_what_was_put_goes_first_and_the_newest_wish_next(work: Work) -> None:
    work.go.clear()
    work.filler.offer(A, chunk_at(7), b"x")
    work.filler.want(A)
    work.filler.want(B)
    work.filler.copy_again(B, chunk_at(9))
    work.filler.offer(A, chunk_at(8), b"x")
    work.go.set()
    work.filler.wait_until_idle()
    assert work.done[:2] == [("put", A, 7), ("put", A, 8)]
    assert work.done[2:] == [*fetches(B, 9), *fetches(B, 0, 1, 2), *fetches(A, 0, 1, 2)]


def test_too_much_that_was_put_is_left_for_later(work: Work) -> None:
    half = bytes(PENDING_BYTES_MAX // 2)
    work.go.clear()
    for number in range(5):
        work.filler.offer(A, chunk_at(number), half)
    work.go.set()
    work.filler.wait_until_idle()
    assert 2 <= len(work.done) <= 3  # one may have been taken before the next came


def test_a_failure_ends_the_turn_of_its_dataset_only(work: Work) -> None:
    work.go.clear()
    work.failures = [Unavailable("x")]
    work.filler.want(A)
    work.go.set()
    work.filler.wait_until_idle()
    work.filler.want(A)
    work.filler.want(B)
    work.filler.wait_until_idle()
    assert work.done == [*fetches(A, 0), *fetches(B, 0, 1, 2)]


def test_without_room_the_rest_is_not_even_tried(work: Work) -> None:
    work.room = 2
    work.filler.want(A)
    work.filler.wait_until_idle()
    assert work.done == fetches(A, 0, 1)


def test_a_dataset_that_is_removed_is_forgotten(work: Work) -> None:
    work.go.clear()
    work.filler.want(B)
    work.filler.offer(A, chunk_at(1), b"x")
    work.filler.forget(B)
    work.go.set()
    work.filler.wait_until_idle()
    assert fetches(B, 1)[0] not in work.done and fetches(B, 2)[0] not in work.done


def test_the_slow_tier_is_left_alone_for_its_share() -> None:
    assert pause_after(1.0, 0.25) == 3.0
    assert pause_after(1.0, 1.0) == 0.0
