"""What a process counts, in one registry: counters, gauges and histograms, by name and labels. No I/O.

A component takes the registry of its process and declares each metric in one line, under its full name:

    self._hits = metrics.counter("node_cache.hits", "Requests for a chunk that was in the node cache.")
    self._hits.value += 1

A metric that other modules read is a `Family` of `telemetry/catalogue.py`, which owner and readers name alike:

    self._failed = metrics.declare(catalogue.READS_FAILED)
    report.total(catalogue.READS_FAILED)

The name says group and quantity, its end the unit: `_bytes`, `_s`, else a plain number. `as_dict` nests at the dots.
`openmetrics` exports what `families` gives, and names the metric above `dieselfs_node_cache_hits_total`. A name that is
declared again gives the same metric, so components that follow each other add to one counter.

Threads: `value += n` is no atomic step. Each metric is changed by one thread, or under `Registry.lock`, which no
component holds while it takes a lock of its own. Metrics may be declared and read in any thread. A `read` function is
called without the lock. A forked child begins at zero.
"""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock
from typing import Any, TypeVar

from dieselfs.errors import InvalidInput
from dieselfs.forks import renew_after_fork

_UNITS = {"bytes": "bytes", "s": "seconds", "share": "ratio"}
"""By the last word of a name."""

_EXPORTED = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
"""Names of metrics and labels."""

LATENCY_BOUNDS_S = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Bounds of histograms of latencies."""

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors of JSON that has another form than expected; OverflowError: a whole number that is no float."""

Read = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Family:
    """All metrics of one name, which differ in the values of their labels."""

    kind: str
    """counter, gauge, histogram; or info, which is no number and is not exported."""
    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Bounds of a histogram."""

    @property
    def unit(self) -> str:
        return _UNITS.get(self.name.replace(".", "_").rpartition("_")[2], "")

    @property
    def exported_name(self) -> str:
        """The name in OpenMetrics, which ends with the unit."""
        stem = "dieselfs_" + self.name.replace(".", "_")
        if self.unit:
            stem = stem.rpartition("_")[0] + "_" + self.unit
        return stem + "_total" if self.kind == "counter" else stem

    def find(self, tree: Mapping[str, Any]) -> Any:
        """The value in what `Registry.as_dict` returns; with labels, a mapping. Raises KeyError or TypeError."""
        found: Any = tree
        for group in self.name.split("."):
            found = found[group]
        return found


class Metric:
    """A number. `read`, if there is one, gives it when it is wanted; `value` means nothing then."""

    __slots__ = ("read", "value")

    def __init__(self, read: Read | None = None) -> None:
        self.read = read
        self.reset()

    def reset(self) -> None:
        self.value: int | float = 0

    def json(self) -> Any:
        return self.value


class Histogram(Metric):
    """Counts values up to each of `bounds`, and adds them up."""

    __slots__ = ("_bounds", "_counts")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds))
        self._bounds = bounds
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self._counts = [0] * (len(self._bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.value += value

    def json(self) -> Any:
        """`le`: how many values were less or equal to each bound."""
        *below, count = accumulate(self._counts)
        return {
            "count": count,
            "sum": self.value,
            "le": dict(zip(map(str, self._bounds), below, strict=True)),
        }


_Kind = TypeVar("_Kind", bound=Metric)


@dataclass(frozen=True, slots=True)
class Report:
    """The metrics of a process as others get them: `about` are labels that say which process it is, `families` and
    `infos` are those of the registry.
    """

    about: Mapping[str, str]
    families: Sequence[Mapping[str, Any]]
    infos: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes) -> "Report":
        """A report as JSON, of a process of any version. Raises InvalidInput unless its fields are as `families` makes
        them.
        """
        try:
            found = json.loads(content)
            report = cls(found["about"], found["families"], dict(found.get("infos", {})))
            names = [*report.about]
            texts = [*report.about.values()]
            numbers: list[Any] = []
            for family in report.families:
                is_histogram = family["kind"] == "histogram"
                if family["kind"] not in ("counter", "gauge") and not is_histogram:
                    raise ValueError(family["kind"])
                names += family["name"], *family["labels"]
                texts += family["help"], family["unit"]
                for labels, value in family["samples"]:
                    texts += [text for _, text in zip(family["labels"], labels, strict=True)]
                    numbers += (
                        (value["sum"], value["count"], *value["le"].values()) if is_histogram else (value,)
                    )
            are_finite = math.isfinite(math.fsum(map(abs, numbers)))  # their sums too
        except UNREADABLE as error:
            raise InvalidInput(f"not a report of metrics: {error!r}") from None
        if not (
            are_finite
            and all(isinstance(name, str) and _EXPORTED.fullmatch(name) for name in names)
            and all(family["name"] != "_total" for family in report.families)
            and all(isinstance(text, str) for text in texts)
        ):
            raise InvalidInput("not a report of metrics: invalid name, text or number")
        return report

    def values(self, family: Family) -> Iterator[tuple[dict[str, str], Any]]:
        """Labels and value of each sample of a metric."""
        name = family.exported_name
        for found in self.families:
            if found["name"] == name:
                for labels, value in found["samples"]:
                    yield dict(zip(found["labels"], labels, strict=True)), value

    def total(self, family: Family) -> float:
        """The sum over all labels; of a histogram, that of the values. 0 if there is none."""
        return sum(
            float(value["sum"] if isinstance(value, dict) else value) for _, value in self.values(family)
        )

    def count(self, family: Family) -> int:
        """How many values a histogram has, over all labels."""
        return sum(int(value["count"]) for _, value in self.values(family) if isinstance(value, dict))

    def info(self, family: Family) -> Any:
        """The value of an info; None if there is none."""
        return self.infos.get(family.name)


class Registry:
    """The metrics of one process, or of one object in it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._families: dict[str, Family] = {}
        self._metrics: dict[tuple[str, tuple[str, ...]], Metric] = {}
        renew_after_fork(self)

    def declare(self, family: Family, read: Read | None = None, **labels: str) -> Metric:
        """A counter, a gauge or an info of the catalogue, with the values of its labels."""
        return self._declare(family, Metric, read, labels)

    def declare_histogram(self, family: Family, **labels: str) -> Histogram:
        """A histogram of the catalogue, with the values of its labels."""
        return self._declare(family, Histogram, None, labels)

    def counter(self, name: str, help: str, read: Read | None = None, **labels: str) -> Metric:
        """A number that only rises."""
        return self.declare(Family("counter", name, help, tuple(labels)), read, **labels)

    def gauge(self, name: str, help: str, read: Read | None = None, **labels: str) -> Metric:
        """A number that rises and falls; None from `read` if it is not known."""
        return self.declare(Family("gauge", name, help, tuple(labels)), read, **labels)

    def histogram(self, name: str, help: str, bounds: Sequence[float], **labels: str) -> Histogram:
        """Counts of values up to each of `bounds`, which rise."""
        return self.declare_histogram(Family("histogram", name, help, tuple(labels), tuple(bounds)), **labels)

    def info(self, name: str, help: str, read: Read) -> None:
        """A value for JSON that is no number."""
        self.declare(Family("info", name, help), read)

    def _declare(
        self, family: Family, kind: type[_Kind], read: Read | None, labels: Mapping[str, str]
    ) -> _Kind:
        name, key = family.name, (family.name, tuple(labels.values()))
        if read is None and self._families.get(name) is family:  # as each call of a server does
            known = self._metrics.get(key)
            if known is not None:
                assert isinstance(known, kind)
                return known
        assert tuple(labels) == family.labels, f"metric {name} has the labels {family.labels}"
        with self.lock:
            assert self._families.setdefault(name, family) == family, f"metric {name} is declared twice"
            metric = self._metrics.get(key)
            if metric is None or read is not None:  # the new one reads the part that is in use now
                metric = Histogram(family.bounds) if kind is Histogram else self._new(family, read)
                self._metrics[key] = metric
            assert isinstance(metric, kind)
            return metric

    def _new(self, family: Family, read: Read | None) -> Metric:
        return Metric(read)

    def remove(self, name: str, *labels: str) -> None:
        """The metric with these values of its labels, of what is no longer there."""
        with self.lock:
            self._metrics.pop((name, labels), None)

    def add(self, metric: Metric, more: int = 1) -> None:
        """For a metric that several threads change."""
        with self.lock:
            metric.value += more

    def observe(self, histogram: Histogram, value: float) -> None:
        """For a histogram that several threads change."""
        with self.lock:
            histogram.observe(value)

    def after_fork(self) -> None:
        """In a forked child: all numbers are zero again, and the lock is free, which a thread of the parent held."""
        self.lock = Lock()
        for metric in self._metrics.values():
            metric.reset()

    def collect(self, names: Container[str] | None = None) -> Iterator[tuple[Family, tuple[str, ...], Any]]:
        """Each metric, or those of some names: its family, the values of its labels, and what it is now."""
        metrics = [
            (key, metric) for key, metric in [*self._metrics.items()] if names is None or key[0] in names
        ]
        values = {key: metric.read() for key, metric in metrics if metric.read}
        with self.lock:
            values |= {key: metric.json() for key, metric in metrics if not metric.read}
        for (name, labels), _ in metrics:
            yield self._families[name], labels, values[name, labels]

    def families(self, names: Container[str] | None = None) -> list[dict[str, Any]]:
        """All metrics but infos, or those of some names, for JSON: `kind`, `name` (as exported), `help`, `unit` and
        `labels` of each family, and its `samples`: values of the labels, and the value. Gauges without a value are left
        out.
        """
        found: dict[str, dict[str, Any]] = {}
        for family, labels, value in self.collect(names):
            if family.kind != "info" and value is not None:
                fields = found.setdefault(
                    family.name,
                    {
                        "kind": family.kind,
                        "name": family.exported_name,
                        "help": family.help,
                        "unit": family.unit,
                        "labels": list(family.labels),
                        "samples": [],
                    },
                )
                fields["samples"].append([list(labels), value])
        return list(found.values())

    def info_value(self, family: Family) -> Any:
        """What an info is now; None if this process does not declare it."""
        return next((value for _, _, value in self.collect((family.name,))), None)

    def report(self, about: Mapping[str, str]) -> Report:
        infos = {family.name: value for family, _, value in self.collect() if family.kind == "info"}
        return Report(about, self.families(), infos)

    def as_dict(self) -> dict[str, Any]:
        """All values for JSON, nested at the dots of their names, and by the values of labels."""
        tree: dict[str, Any] = {}
        for family, labels, value in self.collect():
            *groups, last = (*family.name.split("."), *labels)
            place = tree
            for group in groups:
                place = place.setdefault(group, {})
            place[last] = value
        return tree

    def numbers(self) -> dict[str, int]:
        """Counters and gauges that are whole numbers, by name; those with labels are added up."""
        found: dict[str, int] = {}
        for family, _, value in self.collect():
            if family.kind in ("counter", "gauge") and isinstance(value, int):
                found[family.name] = found.get(family.name, 0) + value
        return found
