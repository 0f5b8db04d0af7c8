"""Merges many small ranges of a payload into few large reads. No I/O."""

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Ranges
from dieselfs.limits import KIB

GAP_BYTES_MAX = 64 * KIB
"""Ranges with at most this gap are merged: reading the gap costs less than another read."""


def merge_ranges(ranges: Ranges, gap_bytes_max: int = GAP_BYTES_MAX) -> Ranges:
    """Ascending disjoint spans that cover `ranges`. Both have shape (n, 2), dtype int64: offset, length. With a
    `gap_bytes_max` of -1 only ranges that overlap are merged.
    """
    filled = ranges[ranges[:, 1] > 0]
    if len(filled) == 0:
        return np.empty((0, 2), np.int64)
    filled = filled[np.argsort(filled[:, 0], kind="stable")]
    reached = np.maximum.accumulate(filled.sum(axis=1))
    firsts = np.flatnonzero(np.concatenate(([True], filled[1:, 0] > reached[:-1] + gap_bytes_max)))
    lasts = np.concatenate((firsts[1:], [len(filled)])) - 1
    starts = filled[firsts, 0]
    return np.stack((starts, reached[lasts] - starts), axis=1)


def span_of(ranges: Ranges, spans: Ranges) -> npt.NDArray[np.int64]:
    """Index of the span of each range, shape (n,), if a span covers it; `spans` are ascending."""
    return np.searchsorted(spans[:, 0], ranges[:, 0], side="right") - 1


def covers(spans: Ranges, ranges: Ranges) -> bool:
    """Whether each non-empty range is within one of the ascending disjoint spans."""
    filled = ranges[ranges[:, 1] > 0]
    if len(filled) == 0 or len(spans) == 0:
        return len(filled) == 0
    owners = span_of(filled, spans)
    return bool(np.all(owners >= 0) and np.all(filled.sum(axis=1) <= spans.sum(axis=1)[owners]))


def cut_ranges(ranges: Ranges, spans: Ranges, contents: list[bytes]) -> list[memoryview]:
    """The bytes of each non-empty range, in order, from the `contents` of the spans."""
    views = [memoryview(content) for content in contents]
    owners = span_of(ranges, spans)
    parts = []
    for (offset, length), span in zip(ranges.tolist(), owners.tolist(), strict=True):
        if length:
            start = offset - int(spans[span, 0])
            parts.append(views[span][start : start + length])
    return parts
