"""Skipped ranges of an epoch, and the positions without them. No I/O.

Ranges are positions in the whole order, before skips; a position of a plan counts only the files that are left.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Positions
from dieselfs.errors import InvalidInput
from dieselfs.limits import SKIP_RANGES_MAX


class Skips:
    """Skipped ranges, ascending, none empty, none touching another. Equal if they skip the same positions."""

    def __init__(self, ranges: Iterable[range] = ()) -> None:
        """Ranges in any order, of step 1; they may overlap. Raises InvalidInput for any other range, or if more than
        SKIP_RANGES_MAX are left after touching ones are joined.
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
        # The start of each range after it and those before it are removed.
        self._places = starts - (np.cumsum(lengths) - lengths)
        self._totals = np.append(0, np.cumsum(lengths))

    @property
    def end(self) -> int:
        """The end of the last skipped range; 0 if there is none."""
        return self.ranges[-1].stop if self.ranges else 0

    def __len__(self) -> int:
        """Number of skipped positions."""
        return int(self._totals[-1])

    def whole(self, positions: npt.ArrayLike) -> Positions:
        """The positions in the whole order of positions after skips; the same shape."""
        places = np.asarray(positions, np.int64)
        whole: Positions = places + self._totals[np.searchsorted(self._places, places, side="right")]
        return whole

    def left_before(self, positions: npt.ArrayLike) -> Positions:
        """The number of positions left before each position of the whole order; the same shape."""
        places = np.asarray(positions, np.int64)
        index = np.searchsorted(self._starts, places, side="right")
        reach = np.append(0, self._starts + self._lengths)[index]
        left: Positions = np.maximum(places, reach) - self._totals[index]
        return left

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skips) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"Skips({list(self.ranges)!r})"


NO_SKIPS = Skips()
