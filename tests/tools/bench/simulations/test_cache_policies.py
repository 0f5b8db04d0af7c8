"""Simulated caches against counts by hand, brute force, and the closed forms for uniform sampling."""

from functools import lru_cache
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulations.cache_policies import (
    Lru,
    NeverEvict,
    Priority,
    RandomEviction,
    min_hits,
    nopfs_hits,
    quiver_hits,
)

EPOCHS = np.random.default_rng(3).permuted(np.tile(np.arange(2000), (4, 1)), axis=1)
ACCESSES = st.lists(st.integers(0, 5), max_size=9)


def last_epoch(cache: Lru | NeverEvict | Priority | RandomEviction) -> float:
    hits = [[cache.access(sample) for sample in epoch] for epoch in EPOCHS.tolist()]
    return float(np.mean(hits[-1]))


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_uniform_sampling_has_closed_forms(share: float) -> None:
    capacity = int(share * 2000)
    assert last_epoch(Lru(capacity)) == pytest.approx(share + (1 - share) * log(1 - share), abs=0.02)
    assert last_epoch(NeverEvict(capacity)) == share
    found = min_hits(EPOCHS.flatten().tolist(), capacity)
    assert np.mean(found[-2000:]) == pytest.approx(share, abs=0.02)
    assert np.mean(found[2000:]) == pytest.approx(share, abs=0.01)


@settings(deadline=None)
@given(samples=ACCESSES, capacity=st.integers(0, 3))
def test_no_choice_has_more_hits_than_min(samples: list[int], capacity: int) -> None:
    @lru_cache(None)
    def best(place: int, cached: frozenset[int]) -> int:
        if place == len(samples):
            return 0
        sample = samples[place]
        if sample in cached:
            return 1 + best(place + 1, cached)
        choices = [cached] + [(cached | {sample}) - {victim} for victim in cached if len(cached) == capacity]
        if len(cached) < capacity:
            choices.append(cached | {sample})
        return max(best(place + 1, frozenset(choice)) for choice in choices)

    assert sum(min_hits(samples, capacity)) == best(0, frozenset())


@given(samples=ACCESSES, capacity=st.integers(0, 3), uses_frequency=st.booleans())
def test_none_exceeds_its_capacity(samples: list[int], capacity: int, uses_frequency: bool) -> None:
    caches = Lru(capacity), NeverEvict(capacity), RandomEviction(capacity), Priority(capacity, uses_frequency)
    for sample in samples:
        for cache in caches:
            was_cached = sample in cache.cached
            assert cache.access(sample) == was_cached
            assert len(cache.cached) <= capacity


def test_lru_and_lfu() -> None:
    lru, lfu = Lru(2), Priority(2)
    for sample in (1, 1, 2, 3):
        lru.access(sample)
        lfu.access(sample)
    assert set(lru.cached) == {2, 3} and set(lfu.cached) == {1, 3}


def test_the_lowest_score_is_evicted_first() -> None:
    cache = Priority(2)
    for sample, score in ((1, 5.0), (2, 4.0), (3, 1.0)):
        cache.access(sample)
        cache.update([sample], score)
    assert set(cache.cached) == {1, 3}
    cache.access(4)  # admitted in any case
    assert set(cache.cached) == {1, 4}


def test_quiver_serves_what_it_has_in_place_of_what_is_missing() -> None:
    cached: set[int] = set()
    assert quiver_hits([1, 2, 3, 4], cached, 2) == [False] * 4 and cached == {1, 2}
    assert quiver_hits([4, 3, 2, 1], cached, 2) == [True, True, False, False]
    assert quiver_hits([1, 3, 4, 2], cached, 2) == [True, True, False, False]


def test_nopfs_keeps_what_its_nodes_will_use_most_often() -> None:
    assert nopfs_hits([[1, 2, 3], [3, 1, 2]], 2) == [[False] * 3, [False, True, True]]
    often = [[1, 2, 3, 4], [2, 1, 4, 4], [4, 2, 4, 1]]
    assert nopfs_hits(often, 1) == [[False] * 4, [False, False, True, True], [True, False, True, False]]
    assert nopfs_hits(often, 2, nodes=2)[1:] == [[True, False, True, True], [True, True, True, False]]
