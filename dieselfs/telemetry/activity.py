"""What the daemons of a node do, from two reports of their metrics. No I/O."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dieselfs.telemetry.registry import Report

DAEMON_SOURCES = {
    "server": "dieselfs_requested_server_bytes_total",
    "peers": "dieselfs_requested_peer_bytes_total",
    "node": "dieselfs_requested_node_bytes_total",
}
"""Bytes by where they came from; counted in jobs and by cache daemons."""
_FETCHED = tuple(f"dieselfs_fetches_{each}_bytes_total" for each in ("chunk", "range", "block"))
_FETCHED_BY_CACHE = ("dieselfs_node_cache_fetched_bytes_total",)
SERVER_METRICS = frozenset(
    (
        *("uptime_s", "process.cpu_s", "process.run_delay_s", "rates.waited_s", "store.answered_s"),
        *("rpc.requests", "rpc.failures", "rpc.received_bytes", "rpc.answered_s", "rpc.connections"),
        *("payloads.sent_bytes", "reading.store_bytes", "reading.waiting"),
    )
)
"""What `ServerActivity` is made of, by their names in the registry."""
_READS = ("get_payload", "get_ranges", "get_block_checksums", "open_payload", "share_payloads")
"""Calls of a server that answer with bytes of chunks."""
_NO_FIELDS = (LookupError, TypeError, ValueError, ArithmeticError)
_PLANNED = "dieselfs_page_cache_planned_files_total"


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
    """Of one group: the files that are read on this node."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One daemon over `seconds`, or since its start. Rates are for a second.

    `waiting`: how many reads waited on the average; `in_progress`: how many wait now, which count when they end.
    `spent`: seconds of all its threads for each cause of stalls, for a second. `run_delay`: seconds for which its main
    thread waited for a processor, for a second. `reclaimed`: chunks of which the kernel has dropped pages, for a
    second. `hit_share`: planned files that were in the page cache when they were read, None without any;
    `best_hit_share`: the share of the dataset that fits into memory.
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
    """Memory for files of plans, fetched ahead of their readers."""


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
        uptime_s = after.total("dieselfs_uptime_seconds")
        if before is not None and before.about == after.about and uptime_s >= seconds:
            self._before: Report | None = before
            self.seconds = seconds
        else:
            self._before = None
            self.seconds = max(uptime_s, 1e-3)
        self._after = after

    def total(self, name: str) -> float:
        before = self._before.total(name) if self._before else 0.0
        return max(self._after.total(name) - before, 0.0)

    def rate(self, *names: str) -> float:
        return sum(self.total(name) for name in names) / self.seconds

    def count(self, name: str) -> int:
        return max(self._after.count(name) - (self._before.count(name) if self._before else 0), 0)

    def mean(self, name: str) -> float | None:
        count = self.count(name)
        return self.total(name) / count if count else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        before = dict(self._labelled(self._before, name, label)) if self._before else {}
        return {
            key: max(value - before.get(key, 0), 0.0) / self.seconds
            for key, value in self._labelled(self._after, name, label)
        }

    @staticmethod
    def _labelled(report: Report, name: str, label: str) -> Iterable[tuple[str, float]]:
        for labels, value in report.values(name):
            if label in labels:
                yield labels[label], value["sum"] if isinstance(value, dict) else value


def activity(process: int, before: Report | None, after: Report, seconds: float) -> Activity | ServerActivity:
    """What a daemon or server did in the `seconds` between two reports; since its start without an earlier one."""
    change = _Change(before, after, seconds)
    if after.about.get("component") == "server":
        answers = change.by_label("dieselfs_rpc_answered_seconds", "method")
        return ServerActivity(
            process,
            after.about,
            change.seconds,
            change.rate("dieselfs_process_cpu_seconds_total"),
            change.rate("dieselfs_rpc_requests_total"),
            change.rate("dieselfs_rpc_failures_total"),
            change.rate("dieselfs_payloads_sent_bytes_total"),
            change.rate("dieselfs_rpc_received_bytes_total"),
            change.rate("dieselfs_reading_store_bytes_total"),
            change.mean("dieselfs_rpc_answered_seconds"),
            change.mean("dieselfs_store_answered_seconds"),
            change.rate("dieselfs_store_answered_seconds"),
            int(after.total("dieselfs_rpc_connections")),
            change.rate("dieselfs_rates_waited_seconds_total"),
            change.rate("dieselfs_process_run_delay_seconds_total"),
            sum(answers.get(method, 0.0) for method in _READS),
            int(after.total("dieselfs_reading_waiting")),
        )
    planned = change.total(_PLANNED)
    fetched = _FETCHED_BY_CACHE if after.about.get("component") == "cache" else _FETCHED
    parts = after.values("dieselfs_memory_allotted_bytes")
    return Activity(
        process,
        after.about,
        change.seconds,
        change.rate("dieselfs_process_cpu_seconds_total"),
        change.rate(*fetched),
        {source: change.rate(name) for source, name in DAEMON_SOURCES.items()},
        change.rate("dieselfs_prefetch_pushed_bytes_total"),
        change.count("dieselfs_reads_waited_seconds") / change.seconds
        + change.rate("dieselfs_reads_at_once_total"),
        change.rate("dieselfs_reads_waited_seconds"),
        change.rate("dieselfs_reads_failed_total"),
        change.by_label("dieselfs_work_spent_seconds", "cause"),
        change.total("dieselfs_page_cache_hits_total") / planned if planned else None,
        after.total("dieselfs_memory_used_bytes"),
        after.total("dieselfs_memory_granted_bytes"),
        next((value for _, value in after.values("dieselfs_hit_rate_best_possible")), None),
        tuple(_plans(after.infos.get("plans"))),
        _slowest(after.infos.get("job.slowest")),
        change.rate("dieselfs_process_run_delay_seconds_total"),
        change.rate("dieselfs_prefetch_reclaimed_chunks_total"),
        int(after.total("dieselfs_reads_in_progress")),
        next((value for part, value in parts if part.get("part") == "window"), 0.0),
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
