"""Whether two kinds of training agree: paired differences of accuracy and their intervals. No I/O."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t

from bench.harness.figures import Row

CONFIDENCE = 0.95
TOLERANCE = 0.01
"""Differences of accuracy below one percentage point are irrelevant."""
PART_EPOCHS = 5
"""Compared are the mean accuracies of the first and of the last epochs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences, and its interval of confidence `CONFIDENCE`."""

    mean: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """The whole interval is within the tolerance."""
        return self.low > -TOLERANCE and self.high < TOLERANCE

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def difference(ours: Sequence[float], others: Sequence[float]) -> Difference:
    """Student's t interval for the mean of `ours - others`, whose elements are of the same seeds; two at least."""
    differences = [one - other for one, other in zip(ours, others, strict=True)]
    mean, count = fmean(differences), len(differences)
    reach = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * stdev(differences) / sqrt(count)
    return Difference(mean, mean - reach, mean + reach)


@dataclass(frozen=True, slots=True)
class Storing:
    """One way to store the digits. By group size: `repeats`, the share of images that follow one of their class;
    `runs`, the accuracies by seed, then by epoch.
    """

    title: str
    chunks: int
    repeats: dict[int, float]
    runs: dict[int, list[list[float]]]


def group_name(group: int, chunks: int) -> str:
    return f"G = {group} ({group / chunks:.0%})" if group else "full shuffle"


def storing_rows(storing: Storing) -> Iterator[Row]:
    """Differences are from the full shuffle, in percentage points."""
    for group, runs in storing.runs.items():
        row = {f"{storing.title}, {storing.chunks} chunks": group_name(group, storing.chunks)}
        row["class repeats"] = f"{storing.repeats[group]:.0%}"
        yield row | accuracy_cells(runs, storing.runs[0])


def accuracy_cells(runs: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> dict[str, str]:
    """Accuracies of runs (by seed, then by epoch), and their differences from those of the base, unless it is that."""
    parts = {"first": slice(PART_EPOCHS), "last": slice(-PART_EPOCHS, None)}
    row, verdicts, is_base = {}, [], runs is base
    for which, part in parts.items():
        ours, theirs = ([fmean(run[part]) for run in each] for each in (runs, base))
        found = difference(ours, theirs)
        row[f"{which} {PART_EPOCHS} epochs"] = f"{100 * fmean(ours):.1f} ± {100 * stdev(ours):.1f} %"
        row[f"difference, {which}"] = "" if is_base else str(found)
        verdicts.append("yes" if found.agrees else "no")
    within = f"within {100 * TOLERANCE:g} point, {CONFIDENCE:.0%} sure"
    return row | {within: "" if is_base else " / ".join(verdicts)}
