"""Skips: what is left, and where it stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.limits import SKIP_RANGES_MAX
from dieselfs.shuffle.skips import NO_SKIPS, Skips

RANGES = st.lists(
    st.builds(lambda first, length: range(first, first + length), st.integers(0, 60), st.integers(0, 20)),
    max_size=SKIP_RANGES_MAX,
)


@given(RANGES)
def test_positions_close_up_behind_what_is_skipped(ranges: list[range]) -> None:
    skips = Skips(ranges)
    left = [place for place in range(100) if not any(place in one for one in ranges)]
    assert len(skips) == 100 - len(left)
    assert skips.whole(range(len(left))).tolist() == left
    before = [len([place for place in left if place < end]) for end in range(101)]
    assert skips.left_before(range(101)).tolist() == before
    assert int(skips.whole(len(left))) == 100  # the end stays the end


@given(RANGES)
def test_ranges_are_joined_and_sorted(ranges: list[range]) -> None:
    skips = Skips(ranges)
    assert Skips(ranges[::-1]) == skips and hash(Skips(ranges[::-1])) == hash(skips)
    assert (
        Skips(range(place, place + 1) for one in skips.ranges[:1] for place in one).ranges == skips.ranges[:1]
    )
    for one, other in zip(skips.ranges, skips.ranges[1:], strict=False):
        assert one.stop < other.start
    assert all(skips.ranges)


def test_nothing_skipped() -> None:
    assert len(NO_SKIPS) == NO_SKIPS.end == 0
    assert NO_SKIPS.whole([3, 1]).tolist() == [3, 1] == NO_SKIPS.left_before([3, 1]).tolist()
    assert Skips([range(5, 5), range(7, 3)]) == NO_SKIPS != Skips([range(1)])


@pytest.mark.parametrize(
    "ranges",
    [[range(-1, 3)], [range(0, 10, 2)], [range(2 * n, 2 * n + 1) for n in range(SKIP_RANGES_MAX + 1)]],
)
def test_what_cannot_be_skipped_is_refused(ranges: list[range]) -> None:
    with pytest.raises(InvalidInput, match="skip"):
        Skips(ranges)
