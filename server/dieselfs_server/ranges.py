"""Few large reads instead of many small ones: which spans of a payload to read for the ranges that were asked
for. No I/O.
"""

import numpy as np
import numpy.typing as npt

from dieselfs.limits import KIB

GAP_BYTES_MAX = 64 * KIB
"""Two ranges this close are read in one go: bytes that nobody wants cost less than another read."""

Ranges = npt.NDArray[np.int64]


def merge_ranges(ranges: Ranges, gap_bytes_max: int = GAP_BYTES_MAX) -> Ranges:
    """Ascending disjoint spans that cover `ranges`. Both have shape (n, 2): offset, length."""
    wanted = ranges[ranges[:, 1] > 0]
    if len(wanted) == 0:
        return np.empty((0, 2), np.int64)
    wanted = wanted[np.argsort(wanted[:, 0], kind="stable")]
    reached = np.maximum.accumulate(wanted.sum(axis=1))
    firsts = np.flatnonzero(np.concatenate(([True], wanted[1:, 0] > reached[:-1] + gap_bytes_max)))
    lasts = np.concatenate((firsts[1:], [len(wanted)])) - 1
    starts = wanted[firsts, 0]
    return np.stack((starts, reached[lasts] - starts), axis=1)


def homes_of(ranges: Ranges, spans: Ranges) -> npt.NDArray[np.int64]:
    """For each range, which of the ascending spans it lies in, if any covers it."""
    return np.searchsorted(spans[:, 0], ranges[:, 0], side="right") - 1


def covers(spans: Ranges, ranges: Ranges) -> bool:
    """Whether each range that has bytes lies in one of the ascending disjoint spans."""
    wanted = ranges[ranges[:, 1] > 0]
    if len(wanted) == 0 or len(spans) == 0:
        return len(wanted) == 0
    homes = homes_of(wanted, spans)
    return bool(np.all(homes >= 0) and np.all(wanted.sum(axis=1) <= spans.sum(axis=1)[homes]))


def cut_ranges(ranges: Ranges, spans: Ranges, contents: list[bytes]) -> list[memoryview]:
    """The bytes of each range, in the order of `ranges`, out of the `contents` of the spans."""
    views = [memoryview(content) for content in contents]
    homes = homes_of(ranges, spans)
    pieces = []
    for (offset, length), home in zip(ranges.tolist(), homes.tolist(), strict=True):
        if length:
            start = offset - int(spans[home, 0])
            pieces.append(views[home][start : start + length])
    return pieces
