"""Ranges of an epoch that are left out, and how positions close up behind them. No I/O.

A range is given by positions in the whole order, before anything is skipped; a position of a plan counts only
what is left.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.limits import SKIP_RANGES_MAX

Numbers = npt.NDArray[np.int64]


class Skips:
    """Skipped ranges, ascending, none empty, none touching another. Equal if they skip the same positions."""

    def __init__(self, ranges: Iterable[range] = ()) -> None:
        """Ranges in any order, of step 1; they may overlap. Raises InvalidInput if one is no such range, or if more
        than SKIP_RANGES_MAX are left once those that touch are joined.
        """
        joined: list[range] = []
        for one in sorted(ranges, key=lambda one: one.start):
            if one.step != 1 or one.start < 0:
                raise InvalidInput(f"{one} cannot be skipped: write range(first, end) with 0 <= first <= end")
            if not one:
                continue
            if joined and one.start <= joined[-1].stop:
                joined[-1] = range(joined[-1].start, max(joined[-1].stop, one.stop))
            else:
                joined.append(one)
        if len(joined) > SKIP_RANGES_MAX:
            raise InvalidInput(f"{len(joined)} ranges to skip in one epoch; the limit is {SKIP_RANGES_MAX}")
        self.ranges = tuple(joined)
        starts = np.array([one.start for one in joined], np.int64)
        lengths = np.array([len(one) for one in joined], np.int64)
        self._starts = starts
        self._lengths = lengths
        # Where each range would stand if it and those before it were gone.
        self._places = starts - (np.cumsum(lengths) - lengths)
        self._totals = np.append(0, np.cumsum(lengths))

    @property
    def end(self) -> int:
        """Behind the last position that is skipped; 0 if none is."""
        return self.ranges[-1].stop if self.ranges else 0

    def __len__(self) -> int:
        """Number of positions that are skipped."""
        return int(self._totals[-1])

    def whole(self, positions: npt.ArrayLike) -> Numbers:
        """Where positions of what is left stand in the whole order."""
        places = np.asarray(positions, np.int64)
        whole: Numbers = places + self._totals[np.searchsorted(self._places, places, side="right")]
        return whole

    def left_before(self, positions: npt.ArrayLike) -> Numbers:
        """How many of the positions before each of these, in the whole order, are left."""
        places = np.asarray(positions, np.int64)
        index = np.searchsorted(self._starts, places, side="right")
        reach = np.append(0, self._starts + self._lengths)[index]
        left: Numbers = np.maximum(places, reach) - self._totals[index]
        return left

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skips) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"Skips({list(self.ranges)!r})"


NO_SKIPS = Skips()
