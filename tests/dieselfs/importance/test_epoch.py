"""Orders of epochs: shape, proportions, spread, and that they depend on their arguments alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.importance.epoch import HITS_SHARE_MAX, draw, first_epoch, later_epoch
from dieselfs.importance.scores import LOWEST_SCORE

NONE = np.zeros(8_000, np.bool_)


def test_the_first_epoch_has_each_sample_once() -> None:
    orders = [first_epoch(500, seed, epoch).samples for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    assert all(sorted(order.tolist()) == list(range(500)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3
    assert first_epoch(500, 1, 0).samples.tolist() == orders[0].tolist()


def test_samples_are_drawn_in_proportion_to_their_scores() -> None:
    weights = np.repeat(np.array([100_000, 300_000], np.uint64), 4000)
    counts = np.bincount(draw(weights, 3, 4), minlength=8000)
    assert counts[:4000].sum() / 8000 == pytest.approx(0.25, abs=0.02)
    assert counts[4000:].sum() / 8000 == pytest.approx(0.75, abs=0.02)


def test_samples_without_a_score_are_drawn_as_the_least_important() -> None:
    scores = np.full(8000, LOWEST_SCORE, np.uint32)
    known = later_epoch(scores, NONE, 1, 1, 0, 1)
    scores[:4000] = 0
    assert later_epoch(scores, NONE, 1, 1, 0, 1).samples.tolist() == known.samples.tolist()


def test_cached_samples_are_repeated_and_their_copies_are_far_from_each_other() -> None:
    scores, cached = np.full(8000, LOWEST_SCORE, np.uint32), NONE.copy()
    cached[:800] = True
    plain, repeated = (later_epoch(scores, cached, 1, 1, 0, repeats).samples for repeats in (1, 3))
    of_cache, of_cache_then = (np.bincount(order, minlength=8000)[:800] for order in (plain, repeated))
    assert (of_cache_then == 3 * of_cache).all()
    for third in np.array_split(repeated, 3):
        assert (third < 800).mean() == pytest.approx(0.3, abs=0.04)  # evenly, not at the beginning
    sample = int(np.flatnonzero(of_cache == 1)[0])
    places = np.flatnonzero(repeated == sample)
    assert [place * 3 // 8000 for place in places.tolist()] == pytest.approx([0, 1, 2], abs=1)


def test_the_weights_of_losses_undo_the_preference() -> None:
    random = np.random.default_rng(5)
    scores = random.integers(LOWEST_SCORE, 3 * LOWEST_SCORE, 8000).astype(np.uint32)
    cached = random.random(8000) < 0.1
    epochs = [later_epoch(scores, cached, seed, 1, 1000, 3) for seed in range(60)]
    weighted = np.zeros(8000)
    for epoch in epochs:
        weighted += np.bincount(epoch.samples, epoch.loss_weights(epoch.samples), 8000)
    hard = scores > 2 * LOWEST_SCORE
    for part in (hard, ~hard, cached, ~cached):
        assert weighted[part].mean() / len(epochs) == pytest.approx(1, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    samples=st.integers(1, 60),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
)
def test_any_epoch(data: st.DataObject, samples: int, seed: int, epoch: int) -> None:
    scores = np.array(
        data.draw(st.lists(st.integers(0, 500_000), min_size=samples, max_size=samples)), np.uint32
    )
    cached = np.array(data.draw(st.lists(st.booleans(), min_size=samples, max_size=samples)))
    repeats = data.draw(st.sampled_from([1.0, 1.5, 3.0, 100.0]))
    found = later_epoch(scores, cached, seed, epoch, 17, repeats)
    assert len(found.samples) == samples and found.samples.min() >= 0 and found.samples.max() < samples
    drawn = draw(np.maximum(scores, LOWEST_SCORE).astype(np.uint64) + np.uint64(17), seed, epoch)
    hits = int(cached[drawn].sum())
    assert hits <= int(cached[found.samples].sum()) <= max(hits, HITS_SHARE_MAX * samples)
    assert set(found.samples.tolist()) <= set(drawn.tolist())
    assert np.isfinite(found.loss_weights(found.samples)).all()
    again = later_epoch(scores, cached, seed, epoch, 17, repeats)
    assert again.samples.tolist() == found.samples.tolist()


def test_an_order_does_not_change() -> None:
    """Jobs resume in it: these numbers are of the first release."""
    scores = (np.arange(12) * 20_000).astype(np.uint32)
    cached = np.arange(12) % 4 == 0
    first, later = first_epoch(12, 1, 0), later_epoch(scores, cached, 1, 1, 100, 2.0)
    assert first.samples.tolist() == [6, 3, 10, 2, 7, 8, 4, 9, 5, 0, 11, 1]
    assert later.samples.tolist() == [4, 8, 8, 10, 0, 4, 5, 10, 0, 8, 4, 8]
