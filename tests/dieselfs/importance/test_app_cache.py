"""The cache against a naive model of algorithm 1, and its bounds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.importance.app_cache import AppCache, CacheAccess

SAMPLES = 12
Step = tuple[int, int | None]
STEPS = st.lists(st.tuples(st.integers(0, SAMPLES - 1), st.none() | st.integers(1, 4)), max_size=120)
"""A sample is read, or it gets a score."""


class Model:
    """Algorithm 1 of SHADE, word by word, for samples of one size."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ghost: dict[int, tuple[int, int]] = {}
        self.cached: set[int] = set()

    def access(self, sample: int) -> CacheAccess:
        if sample in self.cached:
            return CacheAccess(True, True)
        if len(self.cached) < self.capacity:
            self.cached.add(sample)
            return CacheAccess(False, True)
        if sample in self.ghost and self.cached:
            least = min(self.cached, key=lambda one: (*self.ghost.get(one, (0, 0)), one))
            if self.ghost[sample][0] >= self.ghost.get(least, (0, 0))[0]:
                self.cached ^= {least, sample}
                return CacheAccess(False, True, (least,))
        return CacheAccess(False, False)

    def update(self, sample: int, score: int) -> None:
        self.ghost[sample] = score, self.ghost.get(sample, (0, 0))[1] + 1


def score(cache: AppCache, sample: int, value: int) -> None:
    cache.update(np.array([sample]), np.array([value], np.uint32))


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(0, SAMPLES), steps=STEPS)
def test_it_does_what_algorithm_1_does(capacity: int, steps: list[Step]) -> None:
    cache, model = AppCache(SAMPLES, capacity), Model(capacity)
    for sample, value in steps:
        if value is None:
            assert cache.access(sample) == model.access(sample)
        else:
            score(cache, sample, value)
            model.update(sample, value)
        assert cache.samples().tolist() == sorted(model.cached)
        assert len(cache) == cache.used <= capacity


@settings(max_examples=100, deadline=None)
@given(
    capacity=st.integers(0, 40),
    sizes=st.lists(st.integers(0, 20), min_size=SAMPLES, max_size=SAMPLES),
    steps=STEPS,
)
def test_in_bytes_it_never_exceeds_its_capacity(capacity: int, sizes: list[int], steps: list[Step]) -> None:
    cache = AppCache(SAMPLES, capacity, np.array(sizes))
    for sample, value in steps:
        if value is not None:
            score(cache, sample, value)
            continue
        before, own = set(cache.samples().tolist()), int(cache.scores[sample])
        found = cache.access(sample)
        after = set(cache.samples().tolist())
        assert found.is_hit == (sample in before) and found.is_kept == (sample in after)
        assert after == (before - set(found.evicted)) | ({sample} if found.is_kept else set())
        assert all(cache.scores[victim] <= own for victim in found.evicted)
        assert cache.used == sum(sizes[one] for one in after) <= capacity


@given(steps=STEPS)
def test_a_restored_cache_continues_as_the_original(steps: list[Step]) -> None:
    original = AppCache(SAMPLES, 4)
    for half in (steps[::2], steps[1::2]):
        restored = AppCache(SAMPLES, 4)
        restored.scores[:], restored.counts[:] = original.scores, original.counts
        restored.restore(original.samples().tolist())
        for sample, value in half:
            if value is None:
                assert restored.access(sample) == original.access(sample)
            else:
                score(restored, sample, value)
                score(original, sample, value)
        original = restored


def test_the_queue_does_not_grow_with_updates() -> None:
    cache = AppCache(SAMPLES, 3)
    for sample in range(3):
        cache.access(sample)
    for number in range(5000):
        score(cache, number % 3, number + 1)
    assert len(cache._queue) < 100
    assert cache.access(5) == CacheAccess(False, False)


def test_of_a_sample_that_comes_twice_in_a_batch_the_last_score_counts() -> None:
    cache = AppCache(SAMPLES, 3)
    cache.update(np.array([4, 4]), np.array([7, 3], np.uint32))
    assert (cache.scores[4], cache.counts[4]) == (3, 2)
