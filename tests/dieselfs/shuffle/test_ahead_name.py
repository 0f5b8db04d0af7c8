"""Lists of extents as names of a mount: any list returns from its names, and no other name is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.limits import NAME_BYTES_MAX
from dieselfs.shuffle.ahead_name import EXTENTS_MAX, ahead_names, extents_ahead, is_ahead_name

DIGEST = bytes.fromhex("1f2e3d4c") + bytes(28)


def test_consecutive_numbers_are_a_range() -> None:
    assert [*ahead_names(DIGEST, [12, 13, 14, 15, 40, 39])] == ["ahead=1f2e3d4c+12-15+40+39"]
    assert extents_ahead(b"ahead=1f2e3d4c+12-15+40+39", DIGEST, 41) == [12, 13, 14, 15, 40, 39]
    assert not [*ahead_names(DIGEST, [])]


spans = st.tuples(st.integers(0, 1 << 31), st.integers(1, 3 * EXTENTS_MAX))


@given(st.lists(spans, max_size=60))
def test_any_list_returns_from_its_names(parts: list[tuple[int, int]]) -> None:
    numbers = [number for first, count in parts for number in range(first, first + count)]
    found: list[int] = []
    for name in ahead_names(DIGEST, numbers):
        assert len(name) <= NAME_BYTES_MAX and is_ahead_name(name.encode())
        found += extents_ahead(name.encode(), DIGEST, 1 << 32)
    assert found == numbers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ahead=", "write ahead="),
        ("ahead=1f2e3d4c", "write ahead="),
        ("ahead=1f2e3d4c+", "write ahead="),
        ("ahead=1f2e3d4c+1,2", "write ahead="),
        ("ahead=1f2e3d4c+-1", "write ahead="),
        ("ahead=1f2e3d4c+" + "1" * 40, "write ahead="),
        ("ahead=1f2e3d4d+1", "another snapshot"),
        ("ahead=1f2e3d4c+41", "below 41"),
        ("ahead=1f2e3d4c+7-41", "below 41"),
        ("ahead=1f2e3d4c+7-6", "below 41"),
        ("ahead=1f2e3d4c" + "+0-40" * 25, "up to 1024"),
    ],
)
def test_other_names_are_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        extents_ahead(name.encode(), DIGEST, 41)
