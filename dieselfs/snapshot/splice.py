"""A splice: the elements of a column of which some are removed, and others added at given places. No I/O.

What is removed and added is kept, and nothing else: a column may be longer than memory.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import starts_of

_BLOCK_BITS = 12
_DIFFERENT = np.iinfo(np.int64).min


def runs_of(firsts: Numbers, counts: Numbers) -> Numbers:
    """The numbers in several runs, joined: shape (sum of `counts`,)."""
    return np.repeat(firsts - starts_of(counts), counts) + np.arange(int(counts.sum()))


def is_ascending(numbers: npt.NDArray[np.integer], limit: int) -> bool:
    """Whether the numbers rise strictly, and are below `limit`."""
    values = numbers.astype(np.int64)
    return not len(values) or (bool((np.diff(values) > 0).all()) and int(values[-1]) < limit)


class Splice:
    """The move of the elements of a column with `count` elements. The elements that stay keep their order.

    `removed` are numbers of old elements, `added` places of added ones. Raises IndexError if they do not ascend, or are
    out of range.
    """

    def __init__(self, count: int, removed: npt.NDArray[np.integer], added: npt.NDArray[np.integer]) -> None:
        self.old_count, self.count = count, count - len(removed) + len(added)
        if not is_ascending(removed, count) or not is_ascending(added, self.count):
            raise IndexError("numbers of elements do not ascend, or are out of range")
        self.removed, self.added = removed.astype(np.int64), added.astype(np.int64)
        # How many elements that stay are before each of these.
        self._before_removed = self.removed - np.arange(len(removed))
        self._before_added = self.added - np.arange(len(added))

    def old_of_new(self, places: Numbers) -> Numbers:
        """The old elements at these places, -1 for added ones: shape (n,)."""
        return _moved(places, self.added, self._before_removed)

    def next_old(self, place: int) -> int:
        """The old element at this place, or the next one that stays if it is added; `old_count` behind all."""
        kept = place - int(np.searchsorted(self.added, place))
        return kept + int(np.searchsorted(self._before_removed, kept, "right"))

    def new_of_old(self, old: Numbers) -> Numbers:
        """The places of these old elements, -1 for removed ones: shape (n,)."""
        return _moved(old, self.removed, self._before_added)

    def shifts(self, old: Numbers) -> Numbers:
        """By how much these old elements move, in any order: shape (n,). In a third of the time of `new_of_old`, if it
        is asked for many. -1 stands for no element, and moves by 0. Raises IndexError for a removed one.
        """
        found = self._block_shifts.take((old >> _BLOCK_BITS) + 1)
        inside = np.flatnonzero(found == _DIFFERENT)
        if len(inside):
            moved = self.new_of_old(old[inside])
            if int(moved.min()) < 0:
                raise IndexError("an element is removed")
            found[inside] = moved - old[inside]
        return found

    @cached_property
    def _block_shifts(self) -> Numbers:
        """By how much the old elements of each block move, behind a block of none; _DIFFERENT if not by the same."""
        firsts = np.arange(0, self.old_count, 1 << _BLOCK_BITS)
        lasts = np.minimum(firsts + (1 << _BLOCK_BITS), self.old_count) - 1
        shifts = self.new_of_old(firsts) - firsts
        is_different = (shifts != self.new_of_old(lasts) - lasts) | (
            np.searchsorted(self.removed, firsts) != np.searchsorted(self.removed, lasts, "right")
        )
        return np.concatenate(([0], np.where(is_different, _DIFFERENT, shifts)))

    def column(self, old: npt.NDArray[np.generic], added: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The new column, in memory; elements may be rows."""
        column = np.empty((self.count, *old.shape[1:]), old.dtype)
        sources = self.old_of_new(np.arange(self.count))
        column[sources >= 0] = old[sources[sources >= 0]]
        column[self.added] = added
        return column


def _moved(places: Numbers, gone: Numbers, before_new: Numbers) -> Numbers:
    """Where elements are after those at `gone` were left out, which gives -1, and new ones were put in."""
    gone_before = np.searchsorted(gone, places)
    kept = places - gone_before
    found = kept + np.searchsorted(before_new, kept, "right")
    if len(gone):
        found[gone[np.minimum(gone_before, len(gone) - 1)] == places] = -1
    return found
