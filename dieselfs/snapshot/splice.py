"""A splice: the elements of a column of which some are removed, and others added at given places. No I/O."""

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import U8, ends_fault, starts_of


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
        self.count = count - len(removed) + len(added)
        if not is_ascending(removed, count) or not is_ascending(added, self.count):
            raise IndexError("numbers of elements do not ascend, or are out of range")
        is_kept = np.ones(count, np.bool_)
        is_kept[removed] = False
        self.kept = np.flatnonzero(is_kept)
        """The old elements that stay."""
        is_old = np.ones(self.count, np.bool_)
        is_old[added] = False
        self.added = added
        self.places = np.flatnonzero(is_old)
        """The places of the elements that stay."""
        self.new_of_old = np.full(count, -1, np.int64)
        """The place of each old element, -1 for the removed ones."""
        self.new_of_old[self.kept] = self.places

    def column(self, old: npt.NDArray[np.generic], added: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The new column; elements may be rows."""
        column = np.empty((self.count, *old.shape[1:]), old.dtype)
        column[self.places] = old[self.kept]
        column[self.added] = added
        return column

    def strings(
        self,
        old: tuple[npt.NDArray[np.uint8], Numbers],
        added: tuple[npt.NDArray[np.uint8], Numbers],
    ) -> tuple[npt.NDArray[np.uint8], Numbers]:
        """The new column of byte strings: all of them joined, and their ends. The arguments have the same form.

        Runs of strings that stay together are copied at once. Raises IndexError if added ends are out of range.
        """
        (blob, ends), (added_blob, added_ends) = old, added
        if ends_fault(added_ends, len(added_blob)) is not None or len(added_ends) != len(self.added):
            raise IndexError("added strings are out of range")
        starts = np.concatenate((ends, added_ends + len(blob)))
        all_ends, starts = starts, np.concatenate(([0], starts))[:-1]
        if len(added_ends):
            starts[len(ends)] = len(blob)
        joined = np.concatenate((blob, added_blob))
        sources = np.empty(self.count, np.int64)
        sources[self.places] = self.kept
        sources[self.added] = np.arange(len(ends), len(ends) + len(self.added))
        lengths = all_ends[sources] - starts[sources]
        # Runs in which each string begins where the last one ends.
        first = np.flatnonzero(starts[sources[1:]] != all_ends[sources[:-1]]) + 1
        bounds = np.concatenate(([0], first, [len(sources)])) if len(sources) else np.zeros(1, np.int64)
        begins = starts[sources[bounds[:-1]]].tolist()
        stops = all_ends[sources[bounds[1:] - 1]].tolist()
        view = joined.data
        content = b"".join([view[begin:stop] for begin, stop in zip(begins, stops, strict=True)])
        return np.frombuffer(content, U8), np.cumsum(lengths)
