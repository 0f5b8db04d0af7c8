import pytest

from bench.harness.agreement import difference


def test_the_interval_is_that_of_students_t() -> None:
    """An example with round figures: mean 2, standard deviation 1, and 4.303 is t for two degrees of freedom."""
    found = difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found.mean == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), rel=1e-4)


def test_to_agree_the_whole_interval_must_be_within_the_tolerance() -> None:
    others = [0.98, 0.97, 0.99, 0.98]
    assert difference([0.981, 0.972, 0.991, 0.979], others).agrees
    assert not difference([0.96, 0.95, 0.97, 0.96], others).agrees
    assert not difference([0.99, 0.91, 1.0, 0.99], others).agrees  # so unsure that nothing is shown
