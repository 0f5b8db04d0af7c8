"""What was measured, and the arithmetic over it: order of the runs, medians, rates, ratios, aims. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import median


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side. `parts` are processor seconds by who spent them, as far as that is known; `seen` is what
    else was counted or measured, by a name that says the unit; `series` what was measured over time.
    """

    duration_s: float
    parts: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)


class RunFailed(Exception):
    """A side could not do its work; the message says why."""


class Quantity(Enum):
    """What an aim is about, and how it is written."""

    RATE = "at least {:,g} {unit}/s"
    RATIO = "at least {:g} of {base}"
    DURATION_S = "under {:g} s"


@dataclass(frozen=True, slots=True)
class Aim:
    """What a side is to reach: a rate or a ratio of at least `bound`, or a duration below it.

    A ratio is that to the base of the trial, or to each of the sides `of`.
    """

    quantity: Quantity
    bound: float
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work of a trial. `run` does all of it once: `amount` of a `unit`, `size_bytes` together.

    Without a unit, only the time counts.
    """

    name: str
    run: Callable[[], Run]
    amount: float
    unit: str
    size_bytes: int = 0
    aim: Aim | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """Sides that are compared with each other, each run `rounds` times. Ratios are those to the side called `base`.

    `left_out` are sides that cannot be run, and why.
    """

    title: str
    sides: Sequence[Side]
    rounds: int
    base: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def order(self, number: int) -> Sequence[Side]:
        """The sides in the order of a round: there and back, so that none always follows the same other."""
        return self.sides if number % 2 == 0 else self.sides[::-1]


@dataclass(frozen=True, slots=True)
class Figure:
    """What came of a side. Element `i` of `runs`, and of those of the other figures, are of the same round.

    `base` is the figure that it is compared with; `rivals` are those that its aim is about.
    """

    side: Side
    runs: Sequence[Run]
    base: "Figure | None" = None
    rivals: Sequence["Figure"] = ()

    @property
    def durations_s(self) -> list[float]:
        return [run.duration_s for run in self.runs]

    @property
    def duration_s(self) -> float:
        return median(self.durations_s)

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.side.amount / self.duration_s

    @property
    def byte_rate(self) -> float:
        return self.side.size_bytes / self.duration_s

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the base."""
        return None if self.base is None else self.ratio_to(self.base)

    def ratio_to(self, other: "Figure") -> float:
        """How many times as fast, by rate: the median over the rounds, because a machine's speed drifts."""
        per_second = self.side.amount / other.side.amount
        return median(
            per_second * theirs.duration_s / ours.duration_s
            for ours, theirs in zip(self.runs, other.runs, strict=True)
        )

    @property
    def parts(self) -> dict[str, float]:
        """The median of each part over the runs."""
        return {name: median(run.parts[name] for run in self.runs) for name in self.runs[0].parts}

    @property
    def seen(self) -> dict[str, float]:
        """The median of each over the runs that have it."""
        names = dict.fromkeys(name for run in self.runs for name in run.seen)
        return {name: median(run.seen[name] for run in self.runs if name in run.seen) for name in names}

    @property
    def reached(self) -> float | None:
        """What was reached, as a multiple of the aim: 1 and more is enough. None without an aim."""
        aim = self.side.aim
        if aim is None:
            return None
        if aim.quantity is Quantity.DURATION_S:
            return aim.bound / self.duration_s
        if aim.quantity is Quantity.RATE:
            return self.rate / aim.bound
        return min((self.ratio_to(rival) / aim.bound for rival in self.rivals), default=None)


def figures(trial: Trial, runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    """The figures of a trial, from the runs of each side by its name, in the order of the sides."""
    alone = {side.name: Figure(side, runs[side.name]) for side in trial.sides}
    base = alone.get(trial.base or "")
    return [
        replace(figure, base=base, rivals=_rivals(figure.side.aim, base, alone)) for figure in alone.values()
    ]


def _rivals(aim: Aim | None, base: Figure | None, figures: Mapping[str, Figure]) -> list[Figure]:
    if aim is not None and aim.of:
        return [figures[name] for name in aim.of if name in figures]
    return [] if base is None else [base]
