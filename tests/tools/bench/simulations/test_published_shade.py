"""The published code's behaviour, with its defects: what it would print for small cases, by hand."""

import numpy as np
import pytest

from bench.simulations.published_shade import PublishedCache, PublishedReader, PublishedSampler

NONE = np.zeros(100, np.bool_)


def sampler(rank: int = 0, ranks: int = 1, repeats: float = 3.0) -> PublishedSampler:
    return PublishedSampler(100, 10, np.random.default_rng(rank), rank, ranks, repeats)


def test_losses_go_to_the_places_of_the_raw_draw() -> None:
    shade = sampler()
    served = shade.draw(NONE)
    losses = np.arange(10.0)
    touched, weights = shade.record(losses)
    assert touched != served[:10]  # the list was shuffled after it was drawn
    assert weights == pytest.approx(np.log(np.arange(10) + 10).tolist())
    assert sorted(shade.weights[touched].tolist())[-1] == pytest.approx(np.log(19))


def test_with_enough_cached_samples_no_others_are_served_and_all_of_them_come_first() -> None:
    shade, cached = sampler(), NONE.copy()
    cached[:50] = True
    assert max(shade.draw(cached)) < 50
    few = NONE.copy()
    few[:10] = True
    is_cached = [sample < 10 for sample in shade.draw(few)]
    assert is_cached == sorted(is_cached, reverse=True) and 10 < sum(is_cached) < 60


def test_half_of_the_hits_is_repeated_once_more_for_a_half() -> None:
    cached = np.arange(100) < 20
    shares = [sum(cached[sampler(repeats=repeats).draw(cached)]) for repeats in (1.0, 1.5, 2.0)]
    assert shares[1] == shares[0] + shares[0] // 2 and shares[2] == 2 * shares[0]


def test_ranks_overlap_after_the_first_epoch() -> None:
    served = []
    for rank in range(2):
        shade = sampler(rank, 2)
        shade.draw(NONE)
        shade.end_epoch(1.0)
        served.append(shade.draw(NONE))
        assert len(served[-1]) == 50
    assert set(served[0]) & set(served[1])


def test_without_progress_the_order_is_not_sorted_by_frequency() -> None:
    shade = sampler(0, 4)
    shade.draw(NONE)
    shade.end_epoch(1.0)
    aggressive = len(set(shade.draw(NONE)))
    shade.change = -1.0
    assert (
        len(set(shade.draw(NONE))) > aggressive
    )  # then it has the most frequent quarter, several times each


def test_the_cache_keeps_50_places_free_and_wants_a_greater_score() -> None:
    cache = PublishedCache(100, 53)
    for sample in range(3):
        assert not cache.access(sample)
        cache.end_batch([sample], [2.0 + sample])
    assert cache.access(0) and cache.cached.sum() == 3
    cache.access(9)  # full, and its score is not known
    cache.end_batch([9], [2.0])
    cache.access(9)  # known, and equal to the least
    assert not cache.cached[9]
    cache.end_batch([9], [2.5])
    cache.access(9)
    assert cache.cached[9] and not cache.cached[0]


def test_the_cache_counts_once_for_each_batch() -> None:
    cache = PublishedCache(100, 53)
    for sample in range(10):
        cache.access(sample)
    assert cache.cached.sum() == 10  # of 3


def test_a_reader_steps_through_epochs() -> None:
    reader = PublishedReader(100, 10, capacity=90)
    for epoch in range(2):
        read: list[int] = []
        for _, samples in reader.steps():
            reader.consume()
            reader.record(np.arange(10.0))
            read += samples
        assert len(read) == 100 and reader.epoch == epoch
        reader.set_epoch(epoch + 1)
