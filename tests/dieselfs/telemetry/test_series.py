"""Samples of a registry, as tools get them."""

import json
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import InvalidInput
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.series import COLUMNS_MAX, PLANS_MAX, History, Recorded


def recorded(history: History) -> Recorded:
    """As a tool gets it."""
    return Recorded.parse(json.dumps({"about": {"component": "mount"}, **history.content()}).encode())


def plan(order: str, *positions: int) -> dict[str, Any]:
    readers = [
        {"rank": rank, "world": len(positions), "worker": 0, "position": position}
        for rank, position in enumerate(positions)
    ]
    return {
        "order": order,
        "seed": 1,
        "epoch": 2,
        "group": 100,
        "positions": 50,
        "readers": readers,
        "more": 1,
    }


def test_samples_are_of_the_registry() -> None:
    metrics = Registry()
    hits = metrics.counter("page_cache.hits", "Hits.")
    metrics.counter("fuse.requests", "Not kept.", operation="read").value = 7
    waits = metrics.histogram("reads.waited_s", "Waits.", (1.0,))
    history = History(metrics)
    history.sample(100.0)
    hits.value = 5
    waits.observe(0.25)
    for cause, spent_s in (("server", 2.0), ("push", 3.0)):  # declared later
        metrics.gauge("work.spent_s", "Time.", cause=cause).value = spent_s
    history.sample(101.5)
    found = recorded(history)
    assert found.times_s == [100.0, 101.5]
    assert found.series("dieselfs_page_cache_hits_total").tolist() == [0, 5]
    assert found.series("dieselfs_reads_waited_seconds", "count").tolist() == [0, 1]
    assert found.series("dieselfs_reads_waited_seconds", "sum").tolist() == [0, 0.25]
    assert found.series("dieselfs_work_spent_seconds").tolist() == [0, 5]
    assert found.series("dieselfs_work_spent_seconds", cause="push").tolist() == [0, 3]
    assert found.series("dieselfs_fuse_requests_total").tolist() == [0, 0]


def test_the_oldest_samples_give_way() -> None:
    metrics = Registry()
    hits = metrics.counter("page_cache.hits", "Hits.")
    history = History(metrics, samples_max=4)
    for number in range(10):
        hits.value = number
        history.sample(float(number))
    found = recorded(history)
    assert found.times_s == [6, 7, 8, 9]
    assert found.series("dieselfs_page_cache_hits_total").tolist() == [6, 7, 8, 9]


def test_questions_between_two_samples_take_no_place() -> None:
    metrics = Registry()
    hits = metrics.counter("page_cache.hits", "Hits.")
    history = History(metrics, samples_max=4)
    for number in range(13):
        hits.value = number
        history.sample(number / 4)
    found = recorded(history)
    assert found.times_s == [1.5, 2.0, 2.5, 3.0]
    assert found.series("dieselfs_page_cache_hits_total").tolist() == [6, 8, 10, 12]


def test_more_columns_than_fit_are_left_out() -> None:
    metrics = Registry()
    for number in range(COLUMNS_MAX + 5):
        metrics.gauge("memory.used_bytes", "Memory.", part=f"{number}").value = 1
    history = History(metrics)
    history.sample(0.0)
    assert recorded(history).series("dieselfs_memory_used_bytes").tolist() == [COLUMNS_MAX]


def test_readers_of_a_plan_begin_and_move() -> None:
    metrics, plans = Registry(), [plan("a", 0, 0)]
    metrics.info("plans", "Plans.", lambda: plans)
    history = History(metrics)
    for now_s, positions in ((10.0, (0, 0)), (11.0, (0, 4)), (12.0, (3, 8)), (13.0, (3, 9)), (14.0, (3, 9))):
        plans[:] = [plan("a", *positions)]
        history.sample(now_s)
    plans.clear()  # the plan has ended, and is still known
    history.sample(15.0)
    (found,) = recorded(history).plans
    assert (found["order"], found["epoch"], found["positions"]) == ("a", 2, 50)
    progress = [
        (each["rank"], each["position"], each["began_s"], each["moved_s"]) for each in found["readers"]
    ]
    assert progress == [(0, 3, 11.0, 12.0), (1, 9, 10.0, 13.0)]


def test_the_latest_plans_are_kept() -> None:
    metrics, plans = Registry(), [plan("0", 1)]
    metrics.info("plans", "Plans.", lambda: plans)
    history = History(metrics)
    for number in range(PLANS_MAX + 3):
        plans[:] = [plan(str(number), 1)]
        history.sample(float(number))
    assert [each["order"] for each in recorded(history).plans] == [*map(str, range(3, PLANS_MAX + 3))]


@pytest.mark.parametrize(
    "change",
    [
        {"about": 1},
        {"about": {"a": 1}},
        {"times_s": None},
        {"times_s": ["x"]},
        {"times_s": [1, 2]},
        {"families": [{}]},
        {"families": [{"kind": "gauge", "name": "a", "labels": [], "samples": [[[], [10**400]]]}]},
        {"times_s": [10**400]},
        {"plans": [{}]},
        {"plans": [plan("a", 1) | {"seed": 10**400}]},
        {"plans": [plan("a", 1) | {"order": 5}]},
    ],
    ids=lambda change: str(change)[:50],
)
def test_what_is_no_history_is_refused(change: dict[str, Any]) -> None:
    metrics = Registry()
    metrics.counter("page_cache.hits", "Hits.")
    history = History(metrics)
    history.sample(1.0)
    content = {"about": {"component": "mount"}, **history.content()}
    Recorded.parse(json.dumps(content).encode())
    with pytest.raises(InvalidInput, match="not a history"):
        Recorded.parse(json.dumps({**content, **change}).encode())


def test_a_history_without_samples_is_empty() -> None:
    found = recorded(History(Registry()))
    assert (found.times_s, found.families, found.plans) == ([], [], [])
    assert np.array_equal(found.series("dieselfs_page_cache_hits_total"), [])


def test_a_question_soon_after_the_start_leaves_the_first_sample() -> None:
    """What happened since is counted from it."""
    history = History(Registry())
    for now_s in (0.0, 0.2, 0.4):
        history.sample(now_s)
    assert recorded(history).times_s == [0.0, 0.4]
