"""What the daemons of a node do, from two reports of their metrics. No I/O."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dieselfs.rpc.methods import METHODS, READER, SERVER_METHODS
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Family, Report

DAEMON_SOURCES = {
    "server": catalogue.REQUESTED_SERVER_BYTES,
    "peers": catalogue.REQUESTED_PEER_BYTES,
    "node": catalogue.REQUESTED_NODE_BYTES,
}
"""Bytes by where they came from; counted in jobs and by cache daemons."""
FETCHED = (catalogue.FETCHES_CHUNK_BYTES, catalogue.FETCHES_RANGE_BYTES, catalogue.FETCHES_BLOCK_BYTES)
"""Bytes that a mount has fetched, from wherever."""
SERVER_METRICS = frozenset(
    family.name
    for family in (
        catalogue.PAYLOADS_SENT_BYTES,
        catalogue.PROCESS_CPU_S,
        catalogue.PROCESS_RUN_DELAY_S,
        catalogue.RATES_WAITED_S,
        catalogue.READING_STORE_BYTES,
        catalogue.READING_WAITING,
        catalogue.RPC_ANSWERED_S,
        catalogue.RPC_CONNECTIONS,
        catalogue.RPC_FAILURES,
        catalogue.RPC_RECEIVED_BYTES,
        catalogue.RPC_REQUESTS,
        catalogue.STORE_ANSWERED_S,
        catalogue.UPTIME_S,
    )
)
"""Names of the metrics that `ServerActivity` is made of."""
_READS = tuple(method for method in SERVER_METHODS if METHODS[method].urgency == READER)
_NO_FIELDS = (LookupError, TypeError, ValueError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """A plan that is read. `position`: of its slowest reader, of `positions`; `left_s`: the time until its end, if the
    rate is known.
    """

    epoch: int
    position: int
    positions: int
    files_per_s: float | None
    left_s: float | None
    group_bytes: int = 0
    """The files of one group that are read on this node."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One daemon over `seconds`, or since its start. Rates are for a second.

    `waiting`: how many reads waited on the average; `in_progress`: how many wait now, which count when they end.
    `spent`: seconds of all its threads for each cause of stalls, for a second. `run_delay`: seconds for which its main
    thread waited for a processor, for a second. `reclaimed`: chunks of which the kernel has dropped pages, for a
    second. `hit_share`: of the `planned_files` that were read, those that were in the page cache by then, None without
    any; `best_hit_share`: the share of the dataset that fits into memory.
    """

    process: int
    about: Mapping[str, str]
    seconds: float
    cpu: float
    fetched_bytes: float
    sources: Mapping[str, float]
    pushed_bytes: float
    reads: float
    waiting: float
    failed: float
    spent: Mapping[str, float]
    hit_share: float | None
    memory_used_bytes: float
    memory_granted_bytes: float
    best_hit_share: float | None
    plans: tuple[PlanProgress, ...]
    slowest_peer: Mapping[str, Any] | None = None
    """In a job: the `node` whose answers take longest, and their mean, `mean_s`."""
    run_delay: float = 0.0
    reclaimed: float = 0.0
    in_progress: int = 0
    window_bytes: float = 0.0
    planned_files: int = 0
    """Memory for files of plans, fetched ahead of their readers."""
    important: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Files of orders by importance: those that were read, those of them that were kept, and of these, at other nodes.
    """


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """One server over `seconds`, or since its start. Rates are for a second; latencies are means, in seconds, None
    without a call. `busy`: how many calls of the store were in progress on the average. `limited`: how many calls of
    users waited for their rates on the average. `run_delay`: as in `Activity`. `answering`: how many reads of chunks
    were in progress on the average, without the time in which answers are sent. `waiting`: reads of the store that wait
    for others now.
    """

    process: int
    about: Mapping[str, str]
    seconds: float
    cpu: float
    calls: float
    failed: float
    sent_bytes: float
    received_bytes: float
    store_bytes: float
    answer_s: float | None
    store_s: float | None
    busy: float
    connections: int
    limited: float = 0.0
    run_delay: float = 0.0
    answering: float = 0.0
    waiting: int = 0


class _Change:
    """How counters changed from one report to the next; all of them, if there is none before or it is of another
    process with that number.
    """

    def __init__(self, before: Report | None, after: Report, seconds: float) -> None:
        uptime_s = after.total(catalogue.UPTIME_S)
        if before is not None and before.about == after.about and uptime_s >= seconds:
            self._before: Report | None = before
            self.seconds = seconds
        else:
            self._before = None
            self.seconds = max(uptime_s, 1e-3)
        self._after = after

    def total(self, family: Family) -> float:
        before = self._before.total(family) if self._before else 0.0
        return max(self._after.total(family) - before, 0.0)

    def rate(self, *families: Family) -> float:
        return sum(map(self.total, families)) / self.seconds

    def count(self, family: Family) -> int:
        return max(self._after.count(family) - (self._before.count(family) if self._before else 0), 0)

    def mean(self, family: Family) -> float | None:
        count = self.count(family)
        return self.total(family) / count if count else None

    def by_label(self, family: Family) -> dict[str, float]:
        """Rates by the value of the only label."""
        before = dict(self._labelled(self._before, family)) if self._before else {}
        return {
            value: max(number - before.get(value, 0), 0.0) / self.seconds
            for value, number in self._labelled(self._after, family)
        }

    @staticmethod
    def _labelled(report: Report, family: Family) -> Iterable[tuple[str, float]]:
        (label,) = family.labels
        for labels, value in report.values(family):
            if label in labels:
                yield labels[label], value["sum"] if isinstance(value, dict) else value


def activity(process: int, before: Report | None, after: Report, seconds: float) -> Activity | ServerActivity:
    """What a daemon or server did in the `seconds` between two reports; since its start without an earlier one."""
    change = _Change(before, after, seconds)
    if after.about.get("component") == "server":
        answers = change.by_label(catalogue.RPC_ANSWERED_S)
        return ServerActivity(
            process,
            after.about,
            change.seconds,
            change.rate(catalogue.PROCESS_CPU_S),
            change.rate(catalogue.RPC_REQUESTS),
            change.rate(catalogue.RPC_FAILURES),
            change.rate(catalogue.PAYLOADS_SENT_BYTES),
            change.rate(catalogue.RPC_RECEIVED_BYTES),
            change.rate(catalogue.READING_STORE_BYTES),
            change.mean(catalogue.RPC_ANSWERED_S),
            change.mean(catalogue.STORE_ANSWERED_S),
            change.rate(catalogue.STORE_ANSWERED_S),
            int(after.total(catalogue.RPC_CONNECTIONS)),
            change.rate(catalogue.RATES_WAITED_S),
            change.rate(catalogue.PROCESS_RUN_DELAY_S),
            sum(answers.get(method, 0.0) for method in _READS),
            int(after.total(catalogue.READING_WAITING)),
        )
    planned = change.total(catalogue.PAGE_CACHE_PLANNED_FILES)
    is_cache = after.about.get("component") == "cache"
    fetched = (catalogue.NODE_CACHE_FETCHED_BYTES,) if is_cache else FETCHED
    parts = after.values(catalogue.MEMORY_ALLOTTED_BYTES)
    return Activity(
        process,
        after.about,
        change.seconds,
        change.rate(catalogue.PROCESS_CPU_S),
        change.rate(*fetched),
        {source: change.rate(family) for source, family in DAEMON_SOURCES.items()},
        change.rate(catalogue.PREFETCH_PUSHED_BYTES),
        change.count(catalogue.READS_WAITED_S) / change.seconds + change.rate(catalogue.READS_AT_ONCE),
        change.rate(catalogue.READS_WAITED_S),
        change.rate(catalogue.READS_FAILED),
        change.by_label(catalogue.WORK_SPENT_S),
        change.total(catalogue.PAGE_CACHE_HITS) / planned if planned else None,
        after.total(catalogue.MEMORY_USED_BYTES),
        after.total(catalogue.MEMORY_GRANTED_BYTES),
        next((value for _, value in after.values(catalogue.HIT_RATE_BEST_POSSIBLE)), None),
        tuple(_plans(after.info(catalogue.PLANS))),
        _slowest(after.info(catalogue.JOB_SLOWEST)),
        change.rate(catalogue.PROCESS_RUN_DELAY_S),
        change.rate(catalogue.PREFETCH_RECLAIMED_CHUNKS),
        int(after.total(catalogue.READS_IN_PROGRESS)),
        next((value for part, value in parts if part.get("part") == "window"), 0.0),
        int(planned),
        (
            change.total(catalogue.IMPORTANCE_READS),
            change.total(catalogue.IMPORTANCE_HITS),
            change.total(catalogue.IMPORTANCE_FROM_PEERS),
        ),
    )


def _plans(plans: Any) -> Iterable[PlanProgress]:
    """Without those that are none: a report may be of another node."""
    for plan in plans if isinstance(plans, list) else ():
        try:
            position = min((_number(reader["position"]) for reader in plan["readers"]), default=0)
            positions, rate = _number(plan["positions"]), plan["files_per_s"]
            left_s = _number((positions - position) / _number(rate)) if rate else None
            group_bytes = _number(plan.get("group_bytes", 0))
            progress = PlanProgress(_number(plan["epoch"]), position, positions, rate, left_s, group_bytes)
        except _NO_FIELDS:
            continue
        yield progress


def _slowest(found: Any) -> Mapping[str, Any] | None:
    try:
        return {"node": str(found["node"]), "mean_s": float(_number(found["mean_s"]))}
    except _NO_FIELDS:
        return None


def _number(value: Any) -> Any:
    """A finite number. Raises TypeError, ValueError or OverflowError for what is none."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    return value
