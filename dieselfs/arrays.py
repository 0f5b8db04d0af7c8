"""The types of arrays of numbers, each with its shape and the meaning of its elements. No I/O."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
"""Shape (n,): whole numbers for arithmetic and indexing: counts, rows, places, or nodes of a snapshot."""
Positions = npt.NDArray[np.int64]
"""Shape (n,): positions in the order of an epoch."""
Nodes = npt.NDArray[np.uint32]
"""Shape (n,): nodes of a snapshot, as orders store them: 4 bytes each."""
Keys = npt.NDArray[np.uint64]
"""Shape (n,), or (n, 2) for the halves of chunk IDs: values to hash and to sort by, modulo 2^64."""
Hashes = npt.NDArray[np.uint64]
"""Shape (n,), or (rows, n) for tiles: hashes of chunks and members, their weights and their scores."""
Ranges = npt.NDArray[np.int64]
"""Shape (n, 2): offset and length in bytes, one row per range."""

_Element = TypeVar("_Element", bound=np.generic)

AT_ONCE = 1 << 20
"""Elements of a column as long as a dataset for which memory is taken at a time."""


def blocks_of(count: int) -> Iterator[slice]:
    """The elements of a column, AT_ONCE at a time."""
    return (slice(start, min(start + AT_ONCE, count)) for start in range(0, count, AT_ONCE))


def runs_at_once(ends: Numbers) -> Iterator[tuple[slice, slice]]:
    """Consecutive runs, about as many as have AT_ONCE elements together, and these elements. `ends`: of each run."""
    run = start = 0
    while run < len(ends):
        stop = min(int(np.searchsorted(ends, start + AT_ONCE)) + 1, len(ends))
        yield slice(run, stop), slice(start, int(ends[stop - 1]))
        run, start = stop, int(ends[stop - 1])


def counts_of(groups: npt.NDArray[np.integer], count: int) -> Numbers:
    """How many elements each of `count` groups has: shape (count,). `groups`: shape (n,)."""
    counts = np.zeros(count, np.int64)
    for block in blocks_of(len(groups)):
        counts += np.bincount(groups[block], minlength=count)
    return counts


def grouped(
    values: npt.NDArray[_Element], groups: npt.NDArray[np.integer], starts: Numbers
) -> npt.NDArray[_Element]:
    """The values group by group; those of a group keep their order. Shape (n,), as `values` and `groups`. `starts`: of
    each group in the result. A sort of all would take several times the memory.
    """
    found, free = np.empty_like(values), starts.copy()
    for block in blocks_of(len(values)):
        order = stable_argsort(groups[block])
        ordered = groups[block][order]
        heads = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        present, counts = ordered[heads], np.diff(heads, append=len(ordered))
        found[np.repeat(free[present] - heads, counts) + np.arange(len(ordered))] = values[block][order]
        free[present] += counts
    return found


def stable_argsort(numbers: npt.NDArray[np.integer]) -> Numbers:
    """Indices that sort numbers from 0 to 2^32 - 1; equal ones keep their order.

    By halves of 16 bits, for which NumPy has a radix sort: ten times faster than for wider numbers.
    """
    order: Numbers = np.argsort(numbers.astype(np.uint16), kind="stable")
    high = numbers >> 16
    if high.any():
        order = order[np.argsort(high[order].astype(np.uint16), kind="stable")]
    return order


def distinct(values: npt.NDArray[_Element]) -> npt.NDArray[_Element]:
    """Each value once, ascending: shape (n,). For this, `np.unique` imports `numpy.ma`, which takes 30 ms."""
    ordered = np.sort(values, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def among(values: npt.NDArray[_Element], others: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each value is one of `others`: shape (n,). `np.isin` imports `numpy.ma` now and then, as `np.unique`."""
    ordered = np.sort(np.asarray(others), axis=None)
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: npt.NDArray[np.bool_] = ordered[places] == values
    return found
