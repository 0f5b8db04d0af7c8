"""Few reads that cover what was asked for, and every range cut out of them again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.arrays import Ranges
from dieselfs_server.reading.ranges import covers, cut_ranges, merge_ranges

PAYLOAD = bytes(range(256)) * 40
RANGES = st.lists(
    st.integers(0, len(PAYLOAD)).flatmap(
        lambda start: st.tuples(st.just(start), st.integers(0, min(300, len(PAYLOAD) - start)))
    ),
    max_size=40,
)


@given(RANGES, st.integers(0, 500))
def test_every_range_comes_out_of_the_spans(ranges: list[tuple[int, int]], gap_bytes_max: int) -> None:
    asked = np.array(ranges, np.int64).reshape(-1, 2)
    spans = merge_ranges(asked, gap_bytes_max)
    contents = [PAYLOAD[start : start + length] for start, length in spans.tolist()]
    assert b"".join(cut_ranges(asked, spans, contents)) == b"".join(PAYLOAD[s : s + n] for s, n in ranges)
    for (start, length), (following, _) in zip(spans.tolist(), spans[1:].tolist(), strict=False):
        assert following > start + length + gap_bytes_max  # or they would have been one read


def test_neighbours_are_read_in_one_go() -> None:
    spans = merge_ranges(np.array([(5000, 10), (0, 100), (100, 50)], np.int64), gap_bytes_max=100)
    assert spans.tolist() == [[0, 150], [5000, 10]]


@pytest.mark.parametrize(
    ("spans", "ranges", "is_covered"),
    [
        ([(10, 5)], [(10, 5)], True),
        ([(10, 5)], [(9, 1)], False),
        ([(10, 5)], [(14, 2)], False),
        ([(10, 5)], [(2, 0), (90, 0)], True),
        ([(10, 5), (20, 5)], [(20, 1), (12, 3)], True),
        ([(10, 5), (20, 5)], [(14, 7)], False),
        ([], [(0, 1)], False),
        ([], [], True),
    ],
)
def test_ranges_are_covered_by_one_span_each(
    spans: list[tuple[int, int]], ranges: list[tuple[int, int]], is_covered: bool
) -> None:
    def table(pairs: list[tuple[int, int]]) -> Ranges:
        return np.array(pairs, np.int64).reshape(-1, 2)

    assert covers(table(spans), table(ranges)) == is_covered
