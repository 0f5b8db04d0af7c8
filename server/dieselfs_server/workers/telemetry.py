"""Metrics and failures of all workers of a server, as each of them tells them. This module reads shared memory.

Each worker writes its own on the board every second, and when it is asked for all. A worker that takes the place of a
dead one counts on from what that has written: sums of counters never fall.
"""

import json
import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict
from threading import Lock
from typing import Any, NoReturn

import trio

from dieselfs.telemetry.registry import Family, Registry, Report
from dieselfs_server.logs import Failure, RecentFailures
from dieselfs_server.workers.worker import Worker

PUBLISH_S = 1.0

LARGEST = frozenset(("uptime_s", "quota.used_share"))
"""Gauges of which the largest counts."""
MEANS = frozenset(("reading.merged",))
"""Gauges of which the mean counts. All others are added up."""

Sample = tuple[Family, tuple[str, ...], Any]
"""A metric, the values of its labels, and what it is."""

log = logging.getLogger(__name__)


def added(kind: str, one: Any, other: Any) -> Any:
    """The sum of two values of a metric, of which a gauge may be None."""
    if kind != "histogram":
        return one + other if one is not None and other is not None else other if one is None else one
    return {
        "count": one["count"] + other["count"],
        "sum": one["sum"] + other["sum"],
        "le": {bound: count + other["le"].get(bound, 0) for bound, count in one["le"].items()},
    }


def summed(workers: Sequence[Sequence[Sample]]) -> Iterator[Sample]:
    """The samples of all workers as those of one. Infos are those of the first that has them."""
    found: dict[tuple[str, tuple[str, ...]], tuple[Family, list[Any]]] = {}
    for samples in workers:
        for family, labels, value in samples:
            found.setdefault((family.name, labels), (family, []))[1].append(value)
    for (name, labels), (family, values) in found.items():
        total = values[0]
        known = [value for value in values if value is not None]
        if family.kind != "info" and known:
            if name in LARGEST:
                total = max(known)
            else:
                total = known[0]
                for value in known[1:]:
                    total = added(family.kind, total, value)
                if name in MEANS:
                    total = round(total / len(known), 3)
        yield family, labels, total


def encode(samples: Sequence[Sample]) -> list[Any]:
    """For JSON; without infos."""
    return [
        [family.kind, family.name, family.help, family.labels, family.bounds, labels, value]
        for family, labels, value in samples
        if family.kind != "info"
    ]


def decode(rows: Sequence[Any]) -> list[Sample]:
    return [
        (Family(kind, name, text, tuple(names), tuple(bounds)), tuple(labels), value)
        for kind, name, text, names, bounds, labels, value in rows
    ]


class WorkerFailures(RecentFailures):
    """The newest failures of this worker, and of the others in what is read."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._earlier = of_worker(worker, worker.place)[1]  # of dead workers in its place

    def own(self) -> list[Failure]:
        """The newest first."""
        return [*super().newest(), *self._earlier][:FAILURES_TOLD_MAX]

    def newest(self) -> Iterator[Failure]:
        found = self.own()
        for place in self._worker.others:
            found += of_worker(self._worker, place)[1]
        yield from sorted(found, key=lambda failure: failure.time_s, reverse=True)


FAILURES_TOLD_MAX = 500


def of_worker(worker: Worker, place: int) -> tuple[list[Sample], list[Failure]]:
    """What the worker at a place has told last."""
    content = worker.shared.board.read(place)
    if not content:
        return [], []
    rows, failures = json.loads(content)
    return decode(rows), [Failure(**each) for each in failures]


class WorkerMetrics(Registry):
    """Of one worker; those that are read are the sums over all."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self.failures = WorkerFailures(worker)
        before = of_worker(worker, worker.place)[0]
        self._before = [
            sample for sample in before if sample[0].kind != "gauge"
        ]  # of dead workers in its place
        self._publishing = Lock()  # held while this worker writes on the board

    def _own(self, names: Container[str] | None = None) -> list[Sample]:
        before = [each for each in self._before if names is None or each[0].name in names]
        return [*summed([[*super().collect(names)], before])]

    def collect(self, names: Container[str] | None = None) -> Iterator[Sample]:
        """Those of all workers."""
        workers = [self._own(names)]
        for place in self._worker.others:
            samples = of_worker(self._worker, place)[0]
            workers.append([each for each in samples if names is None or each[0].name in names])
        return summed(workers)

    def report(self, about: Any) -> Report:
        """As `Registry.report`. What is told of this worker is kept, even if it dies now."""
        self.publish()
        return super().report(about)

    def publish(self) -> None:
        """Tell the others. Blocks for a moment."""
        with self._publishing:
            failures = [asdict(failure) for failure in self.failures.own()]
            content = json.dumps([encode(self._own()), failures]).encode()
            self._worker.shared.board.write(self._worker.place, content)

    async def run(self) -> NoReturn:
        """Publish until cancelled."""
        while True:
            try:
                await trio.to_thread.run_sync(self.publish, abandon_on_cancel=True)
            except Exception:  # the worker must not end with a task that only tells figures
                log.exception("the metrics of a worker cannot be told")
            await trio.sleep(PUBLISH_S)
