"""Groups of chunks: all chunks, none twice; the default ones begin small and end large."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.shuffle.groups import GROWN_CHUNKS_MAX, GROWTH_CHUNKS, GROWTH_LEFT_CHUNKS, group_ends
from tests.support import reference_order


def sizes(chunks: int, group_chunks: int | None) -> list[int]:
    found: list[int] = np.diff(group_ends(chunks, group_chunks), prepend=0).tolist()
    return found


@given(st.integers(1, 5000), st.none() | st.integers(0, 6000))
def test_groups_are_those_of_the_page(chunks: int, group_chunks: int | None) -> None:
    assert sizes(chunks, group_chunks) == reference_order.group_sizes(chunks, group_chunks)
    assert sum(sizes(chunks, group_chunks)) == chunks and min(sizes(chunks, group_chunks)) > 0


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (1, [1]),
        (19, [19]),
        (20, [4, 16]),
        (30, [4, 8, 18]),
        (44, [4, 8, 16, 16]),
        (65, [4, 8, 16, 37]),
        (100, [4, 8, 16, 24, 24, 24]),
    ],
)
def test_the_default_groups_grow(chunks: int, expected: list[int]) -> None:
    assert sizes(chunks, None) == expected


@given(st.integers(1, 100_000))
def test_the_last_default_group_is_no_small_rest(chunks: int) -> None:
    found = sizes(chunks, None)
    assert found[-1] >= min(chunks, GROWTH_LEFT_CHUNKS) and max(found) <= GROWN_CHUNKS_MAX
    assert found[:3] == list(GROWTH_CHUNKS) or len(found) < 4
