"""Samples over time: what a daemon has counted in the last hour, some of its metrics once a second. No I/O.

`Series` is a ring of samples. `History` samples the registry of the process into one. `Recorded` is the same for a
tool, which gets it as JSON.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import UNREADABLE, Registry, Report

SAMPLE_INTERVAL_S = 1.0
SAMPLES_MAX = 3600
"""An hour."""
COLUMNS_MAX = 48
"""Numbers of one sample; with SAMPLES_MAX 1.4 MB."""
WINDOW_POINTS_MAX = 240
"""Samples that another node gets."""
PLANS_MAX = 64
"""Plans of which the progress is kept: the latest."""

SAMPLED = frozenset(
    family.name
    for family in (
        catalogue.DISK_HIT_BYTES,
        catalogue.FETCHES_BLOCK_BYTES,
        catalogue.FETCHES_CHUNK_BYTES,
        catalogue.FETCHES_RANGE_BYTES,
        catalogue.HIT_RATE_BEST_POSSIBLE,
        catalogue.MEMORY_GRANTED_BYTES,
        catalogue.MEMORY_USED_BYTES,
        catalogue.NODE_CACHE_FETCHED_BYTES,
        catalogue.PAGE_CACHE_HITS,
        catalogue.PAGE_CACHE_PLANNED_FILES,
        catalogue.PEERS_FAILURES,
        catalogue.PREFETCH_PUSHED_BYTES,
        catalogue.PROCESS_CPU_S,
        catalogue.READS_AT_ONCE,
        catalogue.READS_FAILED,
        catalogue.READS_WAITED_S,
        catalogue.REQUESTED_NODE_BYTES,
        catalogue.REQUESTED_PEER_BYTES,
        catalogue.REQUESTED_SERVER_BYTES,
        catalogue.UPTIME_S,
        catalogue.WORK_SPENT_S,
    )
)
_HISTOGRAM_PARTS = ("count", "sum")
_READER_FIELDS = ("world", "rank", "worker", "position", "began_s", "moved_s")

Key = TypeVar("Key")

Window = tuple[float, float]
"""Begin and end, in seconds since 1970."""
Column = tuple[str, tuple[str, ...], str]
"""Name of the metric, values of its labels, and of a histogram the part."""


@dataclass(slots=True)
class _Reader:
    position: int
    began_s: float
    moved_s: float


@dataclass(slots=True)
class _Plan:
    about: dict[str, Any]
    readers: dict[tuple[int, int, int], _Reader] = field(default_factory=dict)
    """By world, rank and worker."""

    def note(self, readers: Sequence[Mapping[str, Any]], before_s: float, now_s: float) -> None:
        for each in readers:
            key = each["world"], each["rank"], each["worker"]
            reader = self.readers.setdefault(key, _Reader(0, before_s, before_s))
            if each["position"] > reader.position:
                if not reader.position:
                    reader.began_s = before_s
                reader.position, reader.moved_s = each["position"], now_s


class Series(Generic[Key]):
    """The last samples of named numbers, in a ring. Used from one thread."""

    def __init__(self, samples_max: int, columns_max: int) -> None:
        """Numbers of further names are left out."""
        self.columns: dict[Key, int] = {}
        """Where `samples` has each name."""
        self._times_s = np.zeros(samples_max)
        self._rows = np.empty((samples_max, columns_max))  # no memory before `add` writes a row
        self.added = 0

    @property
    def newest_s(self) -> float | None:
        return float(self._times_s[(self.added - 1) % len(self._rows)]) if self.added else None

    def add(self, time_s: float, sample: Mapping[Key, float | None], is_replacing: bool = False) -> None:
        """`is_replacing`: in place of the newest sample."""
        self.added += not is_replacing
        place = (self.added - 1) % len(self._rows)
        self._times_s[place] = time_s
        row = self._rows[place]
        row[:] = np.nan
        for name, value in sample.items():
            if name in self.columns or len(self.columns) < len(row):
                row[self.columns.setdefault(name, len(self.columns))] = np.nan if value is None else value

    def samples(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Times, shape (n,), and numbers, shape (n, columns_max), NaN if not known; the oldest first."""
        order = np.arange(max(self.added - len(self._rows), 0), self.added) % len(self._rows)
        return self._times_s[order], self._rows[order]


class History:
    """Samples of a registry. Used from one thread."""

    def __init__(self, metrics: Registry, samples_max: int = SAMPLES_MAX) -> None:
        self._metrics = metrics
        self._families: dict[str, dict[str, Any]] = {}
        self._series: Series[Column] = Series(samples_max, COLUMNS_MAX)
        self._begun_s = 0.0
        """When the newest sample was taken first."""
        self._plans: dict[str, _Plan] = {}

    def sample(self, now_s: float) -> None:
        """Keep what the metrics are now. `now_s`: since 1970, rises with each call.

        Within half of SAMPLE_INTERVAL_S it takes the place of the newest sample: questions do not shorten the hour. The
        first sample stays: what happened since is counted from it.
        """
        series = self._series
        before_s = now_s if series.newest_s is None else series.newest_s
        is_new = series.added < 2 or now_s - self._begun_s >= SAMPLE_INTERVAL_S / 2
        if is_new:
            self._begun_s = now_s
        sample: dict[Column, float | None] = {}
        for each in self._metrics.families(SAMPLED):
            self._families.setdefault(each["name"], {key: each[key] for key in each if key != "samples"})
            for labels, value in each["samples"]:
                numbers = (
                    {part: value[part] for part in _HISTOGRAM_PARTS}
                    if isinstance(value, dict)
                    else {"": value}
                )
                sample |= {(each["name"], tuple(labels), part): number for part, number in numbers.items()}
        series.add(now_s, sample, is_replacing=not is_new)
        for plan in self._metrics.info_value(catalogue.PLANS) or ():
            self._note_plan(plan, before_s, now_s)

    def _note_plan(self, plan: Mapping[str, Any], before_s: float, now_s: float) -> None:
        found = self._plans.get(plan["order"])
        if found is None:
            about = {key: plan[key] for key in ("order", "seed", "epoch", "group", "positions")}
            found = self._plans[plan["order"]] = _Plan(about)
            if len(self._plans) > PLANS_MAX:
                del self._plans[next(iter(self._plans))]
        found.note(plan["readers"], before_s, now_s)

    def content(self, window: Window | None = None) -> dict[str, Any]:
        """For JSON: `times_s` of the samples, or WINDOW_POINTS_MAX of those in a window and around it; `families` as
        those of a registry, with a list of values in place of each value; `plans` with the progress of each reader.
        """
        times_s, rows = self._series.samples()
        if window is not None and len(times_s):
            first, last = np.searchsorted(times_s, window)
            order = np.arange(len(times_s))[max(first - 1, 0) : last + 1]
            points = min(len(order), WINDOW_POINTS_MAX)
            order = order[np.linspace(0, len(order) - 1, points).round().astype(np.intp)]
            times_s, rows = times_s[order], rows[order]
        times_s, rows = times_s.round(3), np.nan_to_num(rows).round(6)
        return {
            "times_s": times_s.tolist(),
            "families": [
                {**about, "samples": list(self._samples(name, rows))}
                for name, about in self._families.items()
            ],
            "plans": [
                {
                    **plan.about,
                    "readers": [
                        {
                            "world": world,
                            "rank": rank,
                            "worker": worker,
                            "position": reader.position,
                            "began_s": round(reader.began_s, 3),
                            "moved_s": round(reader.moved_s, 3),
                        }
                        for (world, rank, worker), reader in plan.readers.items()
                    ],
                }
                for plan in self._plans.values()
            ],
        }

    def _samples(self, name: str, rows: npt.NDArray[np.float64]) -> Iterator[tuple[list[str], Any]]:
        found: dict[tuple[str, ...], Any] = {}
        for (of, labels, part), column in self._series.columns.items():
            if of == name:
                values = rows[:, column].tolist()
                if part:
                    found.setdefault(labels, {})[part] = values
                else:
                    found[labels] = values
        for labels, values in found.items():
            yield list(labels), values


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if not isinstance(value, int | float):
            raise TypeError(f"{value!r} is no number")
        if not math.isfinite(value):  # raises OverflowError for a whole number that is no float
            raise ValueError(f"{value} is no number")


@dataclass(frozen=True, slots=True)
class Recorded:
    """The `content` of a history, and `about`: the labels of its process."""

    about: Mapping[str, str]
    times_s: Sequence[float]
    families: Sequence[Mapping[str, Any]]
    plans: Sequence[Mapping[str, Any]]

    @classmethod
    def parse(cls, content: bytes) -> "Recorded":
        """A history as JSON, of a process of any version. Raises InvalidInput unless its fields are as `content` makes
        them.
        """
        try:
            found = json.loads(content)
            recorded = cls(dict(found["about"]), found["times_s"], found["families"], found["plans"])
            Report.parse(json.dumps({"about": recorded.about, "families": []}).encode())
            np.asarray(recorded.times_s, np.float64).reshape(-1)
            for family in recorded.families:
                for part in _HISTOGRAM_PARTS if family["kind"] == "histogram" else ("",):
                    recorded.series(family["name"], part)
            for plan in recorded.plans:
                for reader in plan["readers"]:
                    _check_numbers(reader[key] for key in _READER_FIELDS)
                _check_numbers(plan[key] for key in ("seed", "epoch", "group", "positions"))
                str.encode(plan["order"])
        except UNREADABLE as error:
            raise InvalidInput(f"not a history of metrics: {error!r}") from None
        return recorded

    def series(self, name: str, part: str = "", **labels: str) -> npt.NDArray[np.float64]:
        """A metric, by its exported name, at each of the times: shape (n,). The sum over all labels but those given; 0
        while it was not declared. `part`: `count` or `sum` of a histogram.
        """
        total = np.zeros(len(self.times_s))
        for family in self.families:
            if family["name"] == name:
                for found, values in family["samples"]:
                    if labels.items() <= dict(zip(family["labels"], found, strict=True)).items():
                        total += np.asarray(values[part] if part else values).reshape(len(total))
        return total
