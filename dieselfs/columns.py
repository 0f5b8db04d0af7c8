"""Columns: small values as one packed little-endian array, in chunk headers and snapshots. No I/O.

A column of byte strings is one `blob` (all of them joined) and the array of their `ends`; string `i` is
`blob[ends[i - 1]:ends[i]]`, and string 0 begins at 0.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dieselfs.limits import MIB, NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX

U8 = np.dtype("u1")
U32 = np.dtype("<u4")
U64 = np.dtype("<u8")
I64 = np.dtype("<i8")

_SLASH = ord("/")
_DOT = ord(".")

_BLOCK_BYTES = 1 * MIB
assert _BLOCK_BYTES > PATH_BYTES_MAX


def ends_of(strings: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """The end of each string after joining all: shape (n,)."""
    return np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)), dtype=np.int64)


def starts_of(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The start of each of several consecutive runs: shape (n,)."""
    starts: npt.NDArray[np.int64] = np.cumsum(counts, dtype=np.int64) - counts
    return starts


def split_blob(blob: bytes | memoryview, ends: npt.NDArray[np.generic]) -> list[bytes]:
    """The strings of a column. `ends` must have been checked: ascending, the last one `len(blob)`."""
    joined = bytes(blob)
    return [joined[start:end] for start, end in pairwise([0, *ends.tolist()])]


def ends_fault(ends: npt.NDArray[np.generic], blob_length: int) -> str | None:
    """Why `ends` cannot be the ends of strings in a blob of this length, or None."""
    values = ends.astype(np.int64, casting="unsafe")
    if len(values) == 0:
        return "bytes without an entry" if blob_length else None
    if values[0] < 0 or bool((np.diff(values) < 0).any()):
        return "ends are not ascending"
    if int(values[-1]) != blob_length:
        return f"the last end is {int(values[-1])}, the column has {blob_length} bytes"
    return None


def first_bad_path(blob: bytes | memoryview, ends: npt.NDArray[np.generic]) -> int | None:
    """Index of the first string that breaks the path rules of `dieselfs.names`, or None.

    The same rules as `names.path_fault`, for a million paths at a time (a test compares the two).
    `ends` must have been checked. The empty path (the root) passes.
    """
    data = np.frombuffer(blob, U8)
    stops = ends.astype(np.int64, casting="unsafe")
    starts = np.concatenate(([0], stops[:-1])) if len(stops) else stops
    too_long = np.flatnonzero(stops - starts > PATH_BYTES_MAX)
    unchecked = int(too_long[0]) if len(too_long) else len(stops)
    first = 0
    while first < unchecked:
        # Block by block, because the arithmetic takes about thirty times the memory of the paths.
        block_end = int(np.searchsorted(stops[:unchecked], starts[first] + _BLOCK_BYTES, side="right"))
        bad = _first_bad_of_block(data, starts[first:block_end], stops[first:block_end])
        if bad is not None:
            return first + bad
        first = block_end
    return unchecked if len(too_long) else None


def _first_bad_of_block(
    data: npt.NDArray[np.uint8], path_starts: npt.NDArray[np.int64], path_ends: npt.NDArray[np.int64]
) -> int | None:
    """As `first_bad_path`, for neighbouring paths of at most PATH_BYTES_MAX bytes each."""
    is_bad = np.zeros(len(path_ends), np.bool_)
    block = slice(path_starts[0], path_ends[-1])

    def owners_of(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(path_ends, places, side="right")

    # A part extends from the path's start, or after a slash, to the next slash or the path's end.
    slashes = np.flatnonzero(data[block] == _SLASH) + block.start
    named = np.flatnonzero(path_ends > path_starts)
    parts = np.bincount(owners_of(slashes), minlength=len(path_ends))[named] + 1
    owners = np.repeat(named, parts)
    # (A stable sort merges the two ascending runs in linear time.)
    starts = np.sort(np.concatenate((path_starts[named], slashes + 1)), kind="stable")
    stops = np.sort(np.concatenate((path_ends[named], slashes)), kind="stable")
    lengths = stops - starts
    is_bad[owners[(lengths < 1) | (lengths > NAME_BYTES_MAX)]] = True
    is_bad[named[parts > PATH_DEPTH_MAX]] = True
    short = np.flatnonzero((lengths == 1) | (lengths == 2))
    is_dots = (data[starts[short]] == _DOT) & (data[stops[short] - 1] == _DOT)
    is_bad[owners[short[is_dots]]] = True
    nuls = np.flatnonzero(data[block] == 0) + block.start
    is_bad[owners_of(nuls)] = True
    bad = np.flatnonzero(is_bad)
    return int(bad[0]) if len(bad) else None
