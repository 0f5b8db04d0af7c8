"""The sources of a mixed epoch: exact counts, even proportions, and the numbers on the page."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.mixture import counts_of, interleave, numbers_of, seed_of
from tests.support import reference_order
from tests.support.documents import DOCUMENTS

COUNTS = st.lists(st.integers(1, 300), min_size=1, max_size=6)


@given(COUNTS, st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_each_source_comes_as_often_as_it_should_in_every_stretch(
    counts: list[int], seed: int, epoch: int
) -> None:
    sources = interleave(counts, seed, epoch)
    assert np.bincount(sources, minlength=len(counts)).tolist() == counts
    assert sources.tolist() == reference_order.mixed(counts, seed, epoch)
    for source, count in enumerate(counts):
        before = np.append(0, np.cumsum(sources == source))
        even = np.arange(len(sources) + 1) * count / len(sources)
        assert np.abs(before - even).max() <= len(counts) + 1
    numbers = numbers_of(sources, counts)
    for source, count in enumerate(counts):
        assert numbers[sources == source].tolist() == list(range(count))


def test_another_seed_or_epoch_is_another_order() -> None:
    orders = {tuple(interleave([50, 30, 20], seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert seed_of(7, 3) == reference_order.mix(reference_order.mix(reference_order.mix(7) ^ 3) ^ 4)
    assert len({seed_of(seed, source) for seed in range(5) for source in range(5)}) == 25


def test_the_example_of_the_page() -> None:
    assert counts_of([4, 4], [3, 1], 8) == [6, 2]
    text = (DOCUMENTS / "reference/order.md").read_text(encoding="utf-8")
    (places,) = re.findall(r"the sources at the 8 positions are ([0-9 ]+)\.", text)
    assert interleave([6, 2], 24, 2).tolist() == [int(source) for source in places.split()]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5), st.integers(10_000_000, 20_000_000))
def test_counts_are_the_weights_rounded(weights: list[float], total: int) -> None:
    counts = counts_of([7] * len(weights), weights, total)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) <= 1.001


def test_without_weights_each_sample_comes_once() -> None:
    assert counts_of([5, 1, 9], None) == [5, 1, 9]
    assert counts_of([5, 1, 9], [1, 1, 1]) == [5, 5, 5]


@pytest.mark.parametrize(
    ("weights", "total", "message"),
    [
        ([1.0], None, "1 weights for 2 datasets"),
        ([1, 0], None, r"weight 1 is 0: give a positive number, or leave the dataset out"),
        ([-1, 1], None, "weight 0 is -1"),
        ([1, float("nan")], None, "weight 1 is nan"),
        ([float("inf"), 1], None, "weight 0 is inf"),
        (["1", 1], None, "weight 0 is '1'"),
        ([True, 1], None, "weight 0 is True"),
        ([1, 1e-9], None, "weight 1 is 1e-09, which gives no sample in an epoch of 14"),
        ([1, 1], 0, "epoch_samples is 0"),
        (None, 5, "give weights, or no epoch_samples"),
    ],
)
def test_bad_weights_are_refused(weights: list[float] | None, total: int | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        counts_of([5, 9], weights, total)


def test_datasets_without_samples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="dataset 1 of the mixture has no samples"):
        counts_of([5, 0], None)
    with pytest.raises(InvalidInput, match="0 datasets to mix"):
        counts_of([], None)
