"""Whether two ways to train agree: the difference of runs with the same seeds, and how sure it is. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t

CONFIDENCE = 0.95
TOLERANCE = 0.01
"""Differences of accuracy below one percentage point are of no account."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences, and the limits that it lies between with the probability `CONFIDENCE`."""

    mean: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """Shown to be within the tolerance, not just not shown to be beyond it."""
        return self.low > -TOLERANCE and self.high < TOLERANCE


def difference(ours: Sequence[float], others: Sequence[float]) -> Difference:
    """Student's t interval for the mean of `ours - others`, whose elements are of the same seeds; two at least."""
    differences = [one - other for one, other in zip(ours, others, strict=True)]
    mean, count = fmean(differences), len(differences)
    reach = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * stdev(differences) / sqrt(count)
    return Difference(mean, mean - reach, mean + reach)
