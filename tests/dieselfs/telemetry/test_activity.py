"""Activity from two reports of a daemon or a server."""

from typing import Any

import pytest

from dieselfs.telemetry.activity import Activity, PlanProgress, ServerActivity, activity
from dieselfs.telemetry.registry import Registry, Report

PLAN = {
    "epoch": 3,
    "positions": 1000,
    "files_per_s": 50.0,
    "group_bytes": 4000,
    "readers": [{"rank": 0, "world": 2, "position": 400}, {"rank": 1, "world": 2, "position": 300}],
}


def mount(uptime_s: float, factor: int, plans: list[dict[str, Any]] | None = None) -> Report:
    metrics = Registry()
    metrics.gauge("uptime_s", "Age.").value = uptime_s
    metrics.counter("process.cpu_s", "CPU.").value = 0.5 * factor
    metrics.counter("fetches.chunk_bytes", "Bytes.").value = 4000 * factor
    metrics.counter("fetches.range_bytes", "Bytes.").value = 400 * factor
    metrics.counter("reads.at_once", "Reads.").value = 10 * factor
    waits = metrics.histogram("reads.waited_s", "Waits.", (1.0,))
    for _ in range(6 * factor):
        waits.observe(0.25)
    metrics.gauge("work.spent_s", "Time.", cause="server").value = 1.0 * factor
    metrics.counter("page_cache.planned_files", "Files.").value = 20 * factor
    metrics.counter("page_cache.hits", "Hits.").value = 15 * factor
    metrics.gauge("importance.reads", "Files.").value = 8 * factor
    metrics.gauge("importance.hits", "Files.").value = 4 * factor
    metrics.gauge("importance.from_peers", "Files.").value = 3 * factor
    metrics.counter("process.run_delay_s", "Waits.").value = 0.8 * factor
    metrics.counter("prefetch.reclaimed_chunks", "Chunks.").value = 6 * factor
    metrics.gauge("reads.in_progress", "Reads.").value = 3 * factor
    metrics.gauge("memory.allotted_bytes", "Limits.", part="window").value = 2000
    metrics.gauge("memory.allotted_bytes", "Limits.", part="pinned").value = 9000
    metrics.info("plans", "Plans.", lambda: plans or [])
    return metrics.report({"component": "mount", "mountpoint": "/mnt/x"})


def test_rates_are_of_the_interval() -> None:
    seen = activity(7, mount(10, 1), mount(12, 2, [PLAN]), 2.0)
    assert isinstance(seen, Activity)
    assert (seen.seconds, seen.cpu, seen.fetched_bytes, seen.reads, seen.waiting) == (
        2.0,
        0.25,
        2200,
        8,
        0.75,
    )
    assert seen.spent == {"server": 0.5} and seen.hit_share == 0.75
    assert seen.important == (8, 4, 3)
    assert (seen.run_delay, seen.reclaimed, seen.in_progress) == (0.4, 3.0, 6)
    assert seen.plans == (PlanProgress(3, 300, 1000, 50.0, 14.0, 4000),) and seen.window_bytes == 2000


@pytest.mark.parametrize(
    "before", [None, mount(500, 9)], ids=["the first report", "that of an earlier process"]
)
def test_a_new_process_counts_from_its_start(before: Report | None) -> None:
    seen = activity(7, before, mount(1, 1), 2.0)
    assert isinstance(seen, Activity)
    assert (seen.seconds, seen.fetched_bytes, seen.plans) == (1, 4400, ())


def test_a_server_has_latencies_of_the_interval() -> None:
    def server(factor: int) -> Report:
        metrics = Registry()
        metrics.gauge("uptime_s", "Age.").value = 100
        metrics.counter("rpc.requests", "Calls.").value = 10 * factor
        metrics.counter("rates.waited_s", "Waits.").value = 15.0 * factor
        answers = metrics.histogram("rpc.answered_s", "Answers.", (1.0,), method="ping")
        reads = metrics.histogram("rpc.answered_s", "Answers.", (1.0,), method="get_ranges")
        for _ in range(factor):
            answers.observe(0.5 * factor)
        reads.value = 10.0 * factor
        metrics.gauge("reading.waiting", "Reads.").value = factor
        return metrics.report({"component": "server"})

    seen = activity(8, server(1), server(2), 5.0)
    assert isinstance(seen, ServerActivity)
    assert (seen.calls, seen.store_s, seen.busy) == (2.0, None, 0.0)
    assert seen.answer_s == 1.5 + 10.0
    assert (seen.limited, seen.answering, seen.waiting) == (3.0, 2.0, 2)


@pytest.mark.parametrize(
    "infos",
    [
        {"plans": 5, "job.slowest": 5},
        {"plans": [1, {}, {**PLAN, "readers": [{}]}], "job.slowest": {"node": "n"}},
        {"plans": [{**PLAN, "positions": 10**400}], "job.slowest": {"node": "n", "mean_s": 10**400}},
        {"plans": [{**PLAN, "files_per_s": 1e-320}], "job.slowest": {"node": "n", "mean_s": "x"}},
    ],
)
def test_what_another_node_says_is_checked(infos: dict[str, Any]) -> None:
    gauge = {"kind": "gauge", "help": "", "unit": "", "labels": [], "samples": [[[], 1]]}
    names = ("dieselfs_work_spent_seconds", "dieselfs_reads_waited_seconds")
    report = Report({}, [{**gauge, "name": name} for name in names], infos)
    seen = activity(7, report, report, 1.0)
    assert isinstance(seen, Activity)
    assert (seen.plans, seen.slowest_peer, seen.spent) == ((), None, {})
