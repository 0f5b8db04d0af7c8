"""What readers saw, put together."""

from lab.load import Verdict, rates, verdict_of
from lab.reader import Moment


def test_the_verdict_leaves_nothing_out() -> None:
    moments = [
        Moment(0.0, 0.1, 3, 0.02),
        Moment(0.1, 4.0, 1, 3.9, ["OSError: gone"]),
        Moment(4.0, 4.1, 2, 0.05),
    ]
    assert verdict_of(moments) == Verdict(6, 3.9, ("OSError: gone",))
    assert verdict_of([]) == Verdict(0, 0.0, ())


def test_rates_have_a_bin_for_each_moment_and_empty_ones_between() -> None:
    moments = [Moment(9.5, 10.0, 4), Moment(9.5, 10.2, 2), Moment(10.0, 11.0, 5)]
    assert rates(moments, 0.5) == [(10.0, 12.0), (10.5, 0.0), (11.0, 10.0)]
    assert rates([]) == []
