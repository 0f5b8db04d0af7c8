"""What readers saw, put together."""

from lab.load import Verdict, verdict_of
from lab.reader import Moment


def test_the_verdict_leaves_nothing_out() -> None:
    moments = [
        Moment(0.0, 0.1, 3, 0.02),
        Moment(0.1, 4.0, 1, 3.9, ["OSError: gone"]),
        Moment(4.0, 4.1, 2, 0.05),
    ]
    assert verdict_of(moments) == Verdict(6, 3.9, ("OSError: gone",))
    assert verdict_of([]) == Verdict(0, 0.0, ())
