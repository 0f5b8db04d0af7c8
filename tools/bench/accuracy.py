"""Accuracy after training in chunk-wise order: Figure 13 of DIESEL, on scikit-learn's handwritten digits.

The digits are stored twice in small chunks: class by class, the hard case, and in mixed order. Networks are trained
through a mount, fully shuffled and with several group sizes.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t

from bench.digits import Entries, Lesson, by_class, mixed, store_digits, write_digits
from bench.figures import Row, Scale
from bench.forms import mounted, running_home
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import measure
from dieselfs.shuffle.spec import PlanSpec

GROUPS = (1, 5, 15, 30, 0)
"""Chunks in a group; 0 shuffles fully."""


def accuracy(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    source = folder / "digits"
    write_digits(source)
    storings = []
    for title, entries in (("stored class by class", by_class), ("stored in mixed order", mixed)):
        storings.append(_learn_from(title, entries, source, folder / entries.__name__, scale))
        yield storing_rows(storings[-1])
    if scale.figure is not None:
        from bench.drawing import draw_accuracy

        draw_accuracy(storings, scale.figure)


def _learn_from(title: str, entries: Entries, source: Path, folder: Path, scale: Scale) -> "Storing":
    """Store the digits in this order, mount them, and train; the kinds of runs take turns."""
    runs: dict[int, list[list[float]]] = {group: [] for group in GROUPS}
    repeats, seeds = {}, range(scale.seeds)
    with running_home(folder) as home:
        with home.dataset(is_created=False) as data:
            store_digits(data, entries, source)
            layout = Layout.of(data.snapshot, b"train")
            for group in GROUPS:
                specs = [PlanSpec(seed, 0, group, folder=layout.folder) for seed in seeds]
                plans = [Plan(data.snapshot, spec, layout) for spec in specs]
                repeats[group] = fmean(measure(plan).folder_repeats for plan in plans)
        for seed in seeds:
            with mounted(home, folder / "mount"):
                lesson = Lesson.on(folder / "mount")
                for group in GROUPS:
                    runs[group].append(lesson.learn(seed, group, scale.epochs))
    return Storing(title, len(layout.counts), repeats, runs)


# -- whether two kinds of training agree: no I/O ----------------------------------------------------------

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
    parts = {"first": slice(PART_EPOCHS), "last": slice(-PART_EPOCHS, None)}
    for group, runs in storing.runs.items():
        row = {f"{storing.title}, {storing.chunks} chunks": group_name(group, storing.chunks)}
        row["class repeats"], verdicts = f"{storing.repeats[group]:.0%}", []
        for which, part in parts.items():
            ours, full = ([fmean(run[part]) for run in each] for each in (runs, storing.runs[0]))
            found = difference(ours, full)
            row[f"{which} {PART_EPOCHS} epochs"] = f"{100 * fmean(ours):.1f} ± {100 * stdev(ours):.1f} %"
            row[f"difference, {which}"] = str(found) if group else ""
            verdicts.append("yes" if found.agrees else "no")
        row[f"within {100 * TOLERANCE:g} point, {CONFIDENCE:.0%} sure"] = (
            " / ".join(verdicts) if group else ""
        )
        yield row
