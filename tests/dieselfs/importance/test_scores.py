"""Ranks by hand, as equation 6 of SHADE has them, and losses that are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.importance.scores import LOWEST_SCORE, RANK_BIAS, SCORE_UNITS, checked_losses, ranks, scores_of


def test_the_example_of_the_paper() -> None:
    """Samples 5 and 8 are the most important ones of their batches, whatever the losses of the other batch are."""
    first, second = scores_of(np.array([0.3, 0.5, 0.4])), scores_of(np.array([0.6, 1.2, 0.8]))
    assert first.tolist() == second.tolist()
    assert (first / SCORE_UNITS).tolist() == pytest.approx([np.log(10), np.log(12), np.log(11)], abs=1e-5)


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.5000001, 2.0, 1e300]), min_size=1, max_size=30))
def test_a_rank_counts_the_smaller_losses(losses: list[float]) -> None:
    expected = [sum(one > other for other in losses) for one in losses]
    assert ranks(np.array(losses)).tolist() == expected
    scores = scores_of(np.array(losses))
    assert LOWEST_SCORE == min(scores) <= max(scores) <= round(np.log(len(losses) + RANK_BIAS) * SCORE_UNITS)


def test_no_logarithm_is_so_close_to_a_half_that_machines_could_round_it_differently() -> None:
    exact = np.log(np.arange(65_536) + RANK_BIAS) * SCORE_UNITS
    assert np.abs(exact % 1 - 0.5).min() > 1e-7


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([1.0, float("nan"), float("inf")], r"number 1 is nan, number 2 is inf: lower the learning rate"),
        ([1.0, 2.0], r"shape \(2,\), the batch has 3 samples.*reduction='none'"),
        (0.7, r"shape \(\), the batch has 3 samples"),
        (["high", "low", "?"], r"losses must be numbers"),
        ([float("nan")] * 3, r"number 0 is nan"),
    ],
)
def test_losses_that_are_none(losses: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        checked_losses(losses, 3)
