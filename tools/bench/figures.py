"""What was measured, and the arithmetic over it: order of the runs, medians, rates, ratios, aims. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side. `parts` are processor seconds by who spent them, as far as that is known."""

    duration_s: float
    parts: Mapping[str, float] = field(default_factory=dict)


class Quantity(Enum):
    """What an aim is about, and how it is written."""

    RATE = "at least {:,g} {unit}/s"
    RATIO = "at least {:g} of {base}"
    DURATION_S = "under {:g} s"


@dataclass(frozen=True, slots=True)
class Aim:
    """What a side is to reach: a rate or a ratio of at least `bound`, or a duration below it."""

    quantity: Quantity
    bound: float


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work of a trial. `run` does all of it once: `amount` of a `unit`, `size_bytes` together."""

    name: str
    run: Callable[[], Run]
    amount: float
    unit: str
    size_bytes: int = 0
    aim: Aim | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """Sides that are compared with each other, each run `rounds` times. Ratios are those to the side called `base`."""

    title: str
    sides: Sequence[Side]
    rounds: int
    base: str | None = None

    def order(self, number: int) -> Sequence[Side]:
        """The sides in the order of a round: there and back, so that none always follows the same other."""
        return self.sides if number % 2 == 0 else self.sides[::-1]


@dataclass(frozen=True, slots=True)
class Figure:
    """What came of a side. Element `i` of `runs` and of `base_runs` are of the same round."""

    side: Side
    runs: Sequence[Run]
    base: Side | None = None
    base_runs: Sequence[Run] = ()

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
        """How many times as fast as the base, by rate: the median over the rounds, because a machine's speed drifts."""
        if self.base is None:
            return None
        per_second = self.side.amount / self.base.amount
        return median(
            per_second * base.duration_s / run.duration_s
            for run, base in zip(self.runs, self.base_runs, strict=True)
        )

    @property
    def parts(self) -> dict[str, float]:
        """The median of each part over the runs."""
        return {name: median(run.parts[name] for run in self.runs) for name in self.runs[0].parts}

    @property
    def reached(self) -> float | None:
        """What was reached, as a multiple of the aim: 1 and more is enough. None without an aim."""
        aim = self.side.aim
        if aim is None:
            return None
        if aim.quantity is Quantity.DURATION_S:
            return aim.bound / self.duration_s
        value = self.rate if aim.quantity is Quantity.RATE else self.ratio
        return None if value is None else value / aim.bound


def figures(trial: Trial, runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    """The figures of a trial, from the runs of each side by its name, in the order of the sides."""
    base = next((side for side in trial.sides if side.name == trial.base), None)
    base_runs = runs[base.name] if base is not None else ()
    return [Figure(side, runs[side.name], base, base_runs) for side in trial.sides]
