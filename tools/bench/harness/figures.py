"""Measurements and their arithmetic: order of the runs, medians, rates, ratios. No I/O."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Scale:
    """`rounds`: runs of each side; `entries`: files of the large dataset; `small_files`, `large_files`: of the source
    trees; `chunks`: in a store; `requests`: of all clients; `kills`: of nodes; `seeds`, `epochs`: of trainings;
    `nodes`: limit of simulated jobs; `figure`: an SVG file to draw; `only`: a pattern in the titles of wanted trials;
    `journal`: of the rounds.
    """

    rounds: int
    entries: int
    small_files: int
    large_files: int
    chunks: int
    requests: int
    kills: int
    seeds: int
    epochs: int
    nodes: int
    is_quick: bool = False
    figure: Path | None = None
    only: str = ""
    journal: "KeptRounds | None" = None

    def wants(self, title: str) -> bool:
        """Whether a trial is needed; others may be left out, with what has to be set up for them."""
        return re.search(self.only, title) is not None

    def part(self, share: float) -> "Scale":
        """With this share of all data and requests, and as many runs, losses and trainings."""
        names = ("entries", "small_files", "large_files", "chunks", "requests")
        return replace(self, **{name: ceil(getattr(self, name) * share) for name in names})


FULL = Scale(5, 1_280_000, 100_000, 5_000, 256, 12_000, 20, 12, 20, 1024)
QUICK = Scale(1, 10_000, 2_000, 100, 32, 600, 2, 2, 2, 16, is_quick=True)


Row = Mapping[str, Any]
"""A line of a Markdown table: by the head of its column a number, a text, or a value and its format."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side. `parts`: processor seconds by process name; `seen`: other measurements by a name with the
    unit; `series`: measurements over time; `machine`: its load before and after, the time that its host took, and the
    number of the session.
    """

    duration_s: float
    parts: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    machine: Mapping[str, float] = field(default_factory=dict)

    def with_seen(self, **seen: float) -> "Run":
        return replace(self, seen={**self.seen, **seen})


class RunFailed(Exception):
    """Why a side failed, or cannot be run on this machine."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work of a trial. `run` does all of it once: `amount` of a `unit` (empty: only time counts)
    and `size_bytes`.
    """

    name: str
    run: Callable[[], Run]
    amount: float
    unit: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """Sides, each run `rounds` times. `base`: the side that ratios refer to."""

    title: str
    sides: Sequence[Side]
    rounds: int
    base: str | None = None

    def order(self, number: int) -> Sequence[Side]:
        """The sides of a round, forwards and backwards in turn, so none always follows the same one."""
        return self.sides if number % 2 == 0 else self.sides[::-1]


class KeptRounds(Protocol):
    """The rounds of a benchmark so far (`bench.harness.journal`)."""

    @property
    def session(self) -> int:
        """The number of this start of the command."""

    def begin_round(self) -> Mapping[str, float]:
        """Before each round: what each of its runs has in `machine`."""

    def begin(self, trial: Trial) -> tuple[dict[str, list[Run]], dict[str, str]]:
        """What is there of the next trial: its runs by side, and the reasons of sides that failed."""

    def note(self, trial: Trial, runs: Mapping[str, Sequence[Run]], left_out: Mapping[str, str]) -> None:
        """After each round of the trial that began last."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that were computed. `trials`: what of, as `trial_fields`. `seeds`: of trainings or simulations, which give
    the same on a loaded machine.
    """

    rows: Iterable[Row]
    trials: Sequence[Mapping[str, Any]] = ()
    seeds: int = 0


ROUNDS_MIN = 5
"""Fewer rounds decide nothing."""
ALIKE = 0.03
"""Rates whose median ratio is this near to 1 count as equal."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The runs of a side. Runs with the same index in all figures are of the same round."""

    side: Side
    runs: Sequence[Run]
    base: "Figure | None" = None

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
    def ratios(self) -> list[float]:
        """Rate divided by that of the base, round by round; empty without a base."""
        if self.base is None:
            return []
        per_second = self.side.amount / self.base.side.amount
        pairs = zip(self.runs, self.base.runs, strict=True)
        return [per_second * theirs.duration_s / ours.duration_s for ours, theirs in pairs]

    @property
    def ratio(self) -> float | None:
        """The median of `ratios`, as a machine's speed drifts from round to round."""
        return median(self.ratios) if self.base is not None else None

    @property
    def verdict(self) -> str:
        """Whether the side is faster than its base: only if all rounds say the same."""
        if self.base is None or self.base.side.name == self.side.name:
            return ""
        if len(self.runs) < ROUNDS_MIN:
            return "too few rounds"
        if abs(median(self.ratios) - 1) <= ALIKE:
            return "alike"
        if min(self.ratios) > 1:
            return "faster"
        return "slower" if max(self.ratios) < 1 else "undecided"

    @property
    def parts(self) -> dict[str, float]:
        return _medians([run.parts for run in self.runs])

    @property
    def seen(self) -> dict[str, float]:
        return _medians([run.seen for run in self.runs])


def _medians(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each value, over the runs with it."""
    names = dict.fromkeys(name for values in measured for name in values)
    return {name: median(values[name] for values in measured if name in values) for name in names}


def figures(trial: Trial, runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    """In the order of the sides. `runs`: by name of the side, of those that did not fail."""
    alone = {side.name: Figure(side, runs[side.name]) for side in trial.sides if side.name in runs}
    return [replace(figure, base=alone.get(trial.base or "")) for figure in alone.values()]
