"""What a daemon has counted in the last hour: some of its metrics, once a second. No I/O.

`History` samples the registry of the process. `Recorded` is the same for a tool, which gets it as JSON.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.telemetry.registry import Registry, Report

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
    (
        "disk.hit_bytes",
        "fetches.block_bytes",
        "fetches.chunk_bytes",
        "fetches.range_bytes",
        "hit_rate.best_possible",
        "memory.granted_bytes",
        "memory.used_bytes",
        "node_cache.fetched_bytes",
        "page_cache.hits",
        "page_cache.planned_files",
        "peers.failures",
        "prefetch.pushed_bytes",
        "process.cpu_s",
        "reads.at_once",
        "reads.failed",
        "reads.waited_s",
        "requested.node_bytes",
        "requested.peer_bytes",
        "requested.server_bytes",
        "uptime_s",
        "work.spent_s",
        "plans",
    )
)
_HISTOGRAM_PARTS = ("count", "sum")
_READER_FIELDS = ("world", "rank", "worker", "position", "began_s", "moved_s")

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


class History:
    """Used from one thread."""

    def __init__(self, metrics: Registry, samples_max: int = SAMPLES_MAX) -> None:
        self._metrics = metrics
        self._families: dict[str, dict[str, Any]] = {}
        self._columns: dict[Column, int] = {}
        self._times_s = np.zeros(samples_max)
        self._rows = np.zeros((samples_max, COLUMNS_MAX))
        self._count = 0
        self._begun_s = 0.0
        """Of the newest row: when it was sampled first."""
        self._plans: dict[str, _Plan] = {}

    def sample(self, now_s: float) -> None:
        """Keep what the metrics are now. `now_s`: since 1970, rises with each call.

        Within half of SAMPLE_INTERVAL_S it takes the place of the newest sample: questions do not shorten the hour. The
        first sample stays: what happened since is counted from it.
        """
        families = self._metrics.families(SAMPLED)
        before_s = float(self._times_s[(self._count - 1) % len(self._rows)]) if self._count else now_s
        if self._count < 2 or now_s - self._begun_s >= SAMPLE_INTERVAL_S / 2:
            self._begun_s = now_s
            self._count += 1
        place = (self._count - 1) % len(self._rows)
        row = self._rows[place]
        row[:] = 0
        self._times_s[place] = now_s
        for each in families:
            self._families.setdefault(each["name"], {key: each[key] for key in each if key != "samples"})
            for labels, value in each["samples"]:
                parts = (
                    [(part, value[part]) for part in _HISTOGRAM_PARTS]
                    if isinstance(value, dict)
                    else [("", value)]
                )
                for part, number in parts:
                    column = self._column((each["name"], tuple(labels), part))
                    if column is not None:
                        row[column] = number
        for plan in self._metrics.info_value("plans") or ():
            self._note_plan(plan, before_s, now_s)

    def _column(self, key: Column) -> int | None:
        """Its number; None if there are too many, which are left out."""
        if key not in self._columns and len(self._columns) == COLUMNS_MAX:
            return None
        return self._columns.setdefault(key, len(self._columns))

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
        size = min(self._count, len(self._rows))
        order = np.arange(self._count - size, self._count) % len(self._rows)
        if window is not None and size:
            first, last = np.searchsorted(self._times_s[order], window)
            order = order[max(first - 1, 0) : last + 1]
            chosen = (
                np.linspace(0, len(order) - 1, min(len(order), WINDOW_POINTS_MAX)).round().astype(np.intp)
            )
            order = order[chosen]
        times_s, rows = self._times_s[order].round(3), self._rows[order].round(6)
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
        for (of, labels, part), column in self._columns.items():
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
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
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
