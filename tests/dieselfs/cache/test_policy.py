"""What stays in memory, what is evicted and in which order, how memory is split, and when a whole chunk is fetched."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dieselfs.cache.policy import (
    BLOCK_REQUEST_BYTES,
    EVICTABLE_BYTES,
    LARGE_EXTENT_BYTES,
    CacheBudget,
    CachePolicy,
    RecentRequests,
    is_small_part,
    is_worth_whole,
)
from dieselfs.chunk.blocks import BLOCK_BYTES
from dieselfs.limits import GIB, KIB, MIB

FILE_BYTES = 1000
FILES_EACH = 4
CHUNK_BYTES = FILE_BYTES * FILES_EACH
CHUNKS = 6

chunks = st.integers(0, CHUNKS - 1)


def policy(
    pinned_bytes: int, evictable_bytes: int, length_bytes: Callable[[int], int] = lambda _: 100
) -> CachePolicy[int, str]:
    return CachePolicy(length_bytes, pinned_bytes, evictable_bytes)


# -- how memory is split -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [1, 10 * MIB, 512 * MIB, 100 * GIB])
@pytest.mark.parametrize("dataset_bytes", [0, 1, 9 * MIB, 400 * MIB, 1000 * GIB])
def test_the_parts_are_the_whole_and_a_dataset_is_pinned_if_it_fits(
    memory_bytes: int, dataset_bytes: int
) -> None:
    budget = CacheBudget.of(memory_bytes, dataset_bytes)
    assert budget.pinned + budget.evictable + budget.lookups == memory_bytes
    assert budget.evictable <= EVICTABLE_BYTES
    assert (budget.evictable == 0) == (budget.pinned >= dataset_bytes) or memory_bytes == 1
    policy = CachePolicy[int, None](lambda _: dataset_bytes, budget.pinned, budget.evictable)
    assert policy.would_pin(0) == (dataset_bytes <= budget.pinned)


def test_an_eighth_of_the_memory_is_for_lookups() -> None:
    assert CacheBudget.of(512 * MIB, 448 * MIB) == CacheBudget(448 * MIB, 0, 64 * MIB)
    large = CacheBudget.of(8 * GIB, 100 * GIB)
    assert large.evictable == EVICTABLE_BYTES and large.pinned == 7 * GIB - EVICTABLE_BYTES


def test_what_another_process_keeps_is_pinned_and_takes_no_room() -> None:
    cache = policy(100, 100)
    cache.add(0, "pinned")
    cache.add(1, "evictable")
    for chunk in (1, 2, 3):
        cache.keep(chunk, f"kept {chunk}")
    assert set(cache.pinned) == set(cache) == {0, 1, 2, 3} and len(cache) == 4
    assert (cache.pinned_bytes, cache.evictable_bytes) == (100, 0)
    assert cache.get(1) == "kept 1"
    assert cache.drop(2) and cache.pinned_bytes == 100
    assert cache.drop(0) and cache.pinned_bytes == 0
    cache.clear()
    assert not cache.pinned and 3 not in cache


# -- what stays ----------------------------------------------------------------------------------------------


def test_what_comes_first_is_pinned_and_the_least_recently_used_of_the_rest_is_evicted() -> None:
    lengths = {6: 50}
    cache = policy(250, 300, lambda chunk: lengths.get(chunk, 100))
    for chunk in range(5):
        assert cache.add(chunk, f"chunk {chunk}") == (chunk < 2)
    assert set(cache.pinned) == {0, 1} and cache.pinned_bytes == 200
    assert cache.get(2) == "chunk 2"  # used now, so 3 goes before it
    cache.add(5, "chunk 5")
    assert [chunk for chunk in range(6) if chunk in cache] == [0, 1, 2, 4, 5]
    assert cache.evictable_bytes == 300
    assert cache.would_pin(6) and not cache.would_pin(7)
    assert cache.add(6, "chunk 6") and cache.pinned_bytes == 250


def test_what_fits_nowhere_is_said_so() -> None:
    cache = policy(100, 200, lambda chunk: chunk)
    assert cache.has_room(100) and cache.has_room(200) and not cache.has_room(201)


def test_in_flight_a_chunk_has_the_room_that_it_will_be_pinned_in() -> None:
    cache = policy(250, 100)
    cache.begin(0)
    cache.begin(1)
    cache.begin(2)
    assert cache.would_pin(0) and cache.would_pin(1) and not cache.would_pin(2)
    cache.end(0)
    assert cache.would_pin(2)
    assert cache.add(2, "chunk 2") and cache.add(1, "chunk 1") and not cache.would_pin(3)


def test_with_reserved_room_eviction_comes_before_the_fetch() -> None:
    cache = CachePolicy[int, str](lambda _: 100, 0, 200, reserves_in_flight=True)
    for chunk in (0, 1):
        cache.begin(chunk)
        cache.add(chunk, f"chunk {chunk}")
    assert cache.evictable_bytes == 200 and cache.reserved_bytes == 0
    cache.begin(2)
    assert [chunk for chunk in range(3) if chunk in cache] == [1]
    cache.begin(3)
    assert 1 in cache, "the newest stays, as somebody reads it"
    cache.end(2)
    cache.add(3, "chunk 3")
    assert cache.evictable_bytes == 200


def test_what_is_dropped_makes_room_and_an_evictable_chunk_can_be_pinned_then() -> None:
    cache = policy(100, 300)
    for chunk in range(3):
        cache.add(chunk, f"chunk {chunk}")
    assert cache.pin(1) is None and 1 in cache
    assert cache.drop(0) and not cache.drop(2) and not cache.drop(5)
    assert cache.pin(1) == "chunk 1" and set(cache.pinned) == {1}
    assert (cache.pinned_bytes, cache.evictable_bytes) == (100, 0)


def test_after_it_is_cleared_there_is_no_room() -> None:
    cache = policy(200, 100)
    for chunk in (7, 5, 9):
        cache.add(chunk, "held")
    cache.clear()
    assert not cache.has_room(3) and cache.get(7) is None and cache.get(9) is None
    assert cache.pinned_bytes == cache.evictable_bytes == 0


def test_in_random_order_the_hits_are_the_pinned_share() -> None:
    """Nothing does better, and the least recently used one does far worse: half the memory gives half the hits."""
    order, rounds = list(range(40)), 6
    cache = policy(18, 2, lambda _: 1)
    choose, hits = random.Random(3), 0
    for epoch in range(rounds):
        choose.shuffle(order)
        for chunk in order:
            if cache.get(chunk) is not None:
                hits += epoch > 0
            else:
                cache.add(chunk, "held")
    assert hits >= 18 * (rounds - 1)


class EvictionMachine(RuleBasedStateMachine):
    """The model: what is here, last used last, with the files of it that were handed out, and when all were."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = policy(0, 3 * CHUNK_BYTES, lambda _: CHUNK_BYTES)
        self.here: dict[int, set[int]] = {}
        self.finished: list[int] = []

    def forget(self, chunk: int) -> None:
        del self.here[chunk]
        if chunk in self.finished:
            self.finished.remove(chunk)

    @rule(chunk=chunks)
    def comes(self, chunk: int) -> None:
        if chunk in self.here:
            return
        self.cache.add(chunk, "held")
        if len(self.here) == 3:
            self.forget(self.finished[0] if self.finished else next(iter(self.here)))
        self.here[chunk] = set()

    @rule(chunk=chunks, files=st.sets(st.integers(0, FILES_EACH - 1), min_size=1))
    def are_handed_out(self, chunk: int, files: set[int]) -> None:
        ranges = [(file * FILE_BYTES, FILE_BYTES) for file in files]
        self.cache.handed_out(chunk, np.array(ranges, np.int64))
        if chunk not in self.here:
            return
        handed = self.here[chunk]
        if handed & files:
            handed.clear()
        handed |= files
        if chunk in self.finished:
            self.finished.remove(chunk)
        if len(handed) == FILES_EACH:
            self.finished.append(chunk)

    @rule(chunk=chunks)
    def is_used(self, chunk: int) -> None:
        assert (self.cache.get(chunk) is not None) == (chunk in self.here)
        if chunk in self.here:
            self.here[chunk] = self.here.pop(chunk)

    @rule(chunk=chunks)
    def is_dropped(self, chunk: int) -> None:
        assert not self.cache.drop(chunk)
        if chunk in self.here:
            self.forget(chunk)

    @invariant()
    def holds_the_same(self) -> None:
        assert {chunk for chunk in range(CHUNKS) if chunk in self.cache} == set(self.here)
        assert self.cache.evictable_bytes == len(self.here) * CHUNK_BYTES <= self.cache.evictable_max_bytes


TestEviction = EvictionMachine.TestCase


def test_one_that_is_larger_than_the_budget_is_held_alone() -> None:
    cache = policy(0, 99)
    for chunk in range(3):
        cache.add(chunk, "held")
        assert chunk in cache and cache.evictable_bytes == 100


def test_bytes_that_no_file_has_are_not_waited_for() -> None:
    cache = CachePolicy[int, str](lambda _: 100, 0, 200, live_bytes=lambda _: 60)
    cache.add(0, "held")
    cache.add(1, "held")
    cache.handed_out(1, np.array([[0, 30], [30, 30]]))
    cache.add(2, "held")
    assert 0 in cache and 1 not in cache


# -- when a whole chunk is fetched ---------------------------------------------------------------------------


def test_a_quarter_of_a_payload_is_worth_the_whole() -> None:
    assert is_worth_whole(25, 100) and not is_worth_whole(24, 100)
    assert is_worth_whole(75, 100, share=0.75) and not is_worth_whole(74, 100, share=0.75)


def test_requests_that_follow_each_other_add_up() -> None:
    recent = RecentRequests(request_bytes=10 * KIB)
    assert [recent.is_worth_whole(7, 20 * KIB, 400 * KIB) for _ in range(4)] == [False, False, False, True]
    assert 7 not in recent, "it counts from the beginning"
    assert not recent.is_worth_whole(7, 20 * KIB, 400 * KIB) and 7 in recent
    recent.forget(7)
    assert 7 not in recent


def test_chunks_of_one_request_share_its_latency() -> None:
    recent = RecentRequests(request_bytes=64 * KIB)
    assert recent.requested_bytes(7, 4 * KIB) == 68 * KIB
    assert recent.requested_bytes(7, 4 * KIB, together=64) == 5 * KIB
    recent.note(7, 4 * KIB, 10, together=64)
    assert recent.requested_bytes(7, 4 * KIB, together=64) == 10 * KIB


def test_the_chunk_that_was_requested_longest_ago_is_forgotten() -> None:
    recent = RecentRequests()
    for chunk in (0, 1, 2, 0, 3):
        assert not recent.is_worth_whole(chunk, 1, 4 * MIB, chunks_max=3)
    assert [chunk for chunk in range(4) if chunk in recent] == [0, 2, 3]


@given(st.integers(LARGE_EXTENT_BYTES, 16 * MIB), st.data())
def test_small_reads_of_a_large_extent_fetch_at_most_seven_times_what_they_read(
    payload_bytes: int, data: st.DataObject
) -> None:
    """Reads of one block each, at any places; what was fetched stays in memory."""
    blocks = -(-payload_bytes // BLOCK_BYTES)
    reads = data.draw(st.lists(st.integers(0, blocks - 1), min_size=1, max_size=2 * blocks, unique=True))
    recent, fetched_bytes, read_bytes = RecentRequests(BLOCK_REQUEST_BYTES), 0, 0
    is_whole = False
    for _ in reads:
        read_bytes += BLOCK_BYTES
        if is_whole:
            continue
        assert is_small_part(BLOCK_BYTES, payload_bytes)
        is_whole = recent.is_worth_whole(0, BLOCK_BYTES, payload_bytes)
        fetched_bytes += payload_bytes if is_whole else BLOCK_BYTES
        assert fetched_bytes <= 7 * read_bytes + BLOCK_BYTES


@pytest.mark.parametrize(
    ("wanted", "extent", "is_small"),
    [
        (16 * KIB, 4 * MIB, True),
        (1 * MIB, 4 * MIB, False),
        (16 * KIB, 110_000, False),
        (4 * KIB, LARGE_EXTENT_BYTES, True),
        (128 * KIB, LARGE_EXTENT_BYTES, False),
    ],
)
def test_a_small_part_of_a_large_extent(wanted: int, extent: int, is_small: bool) -> None:
    assert is_small_part(wanted, extent) == is_small
