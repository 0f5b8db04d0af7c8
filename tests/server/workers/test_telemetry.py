"""Metrics and failures of all workers, as one server has them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from dieselfs.telemetry.registry import Family
from dieselfs_server.workers.shared import BOARD_BYTES, Board, Shared
from dieselfs_server.workers.telemetry import WorkerMetrics
from dieselfs_server.workers.worker import Worker

CALLS = Family("counter", "test.calls", "Calls.", ("method",))
WAITING = Family("gauge", "test.waiting", "Waiting.")
UPTIME = Family("gauge", "uptime_s", "Age.")
MERGED = Family("gauge", "reading.merged", "Mean.")
TOOK = Family("histogram", "test.took_s", "Times.", (), (0.1, 1.0))


@pytest.fixture
def workers() -> Iterator[list[WorkerMetrics]]:
    with _channel() as channel:
        shared = Shared(2)
        yield [WorkerMetrics(Worker(place, 2, channel, shared)) for place in range(2)]


@contextmanager
def _channel() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


def value(metrics: WorkerMetrics, family: Family, *labels: str) -> object:
    (found,) = (each for of, given, each in metrics.collect((family.name,)) if given == labels)
    return found


def test_counters_gauges_and_histograms_are_added_up(workers: list[WorkerMetrics]) -> None:
    one, other = workers
    one.declare(CALLS, method="stat").value = 3
    other.declare(CALLS, method="stat").value = 4
    other.declare(CALLS, method="put").value = 5
    for place, each in enumerate(workers):
        each.declare(WAITING, lambda: 2)
        each.declare(UPTIME, partial(int, 10 + place))
        each.declare_histogram(TOOK).observe(0.05 + place)
        each.declare(MERGED, partial({0: 4.0}.get, place))
        each.publish()
    for each in workers:
        assert value(each, CALLS, "stat") == 7 and value(each, CALLS, "put") == 5
        assert value(each, WAITING) == 4 and value(each, UPTIME) == 11 and value(each, MERGED) == 4.0
        took = value(each, TOOK)
        assert took == {"count": 2, "sum": pytest.approx(1.1), "le": {"0.1": 1, "1.0": 1}}
        assert each.numbers()["test.calls"] == 12


def test_what_a_dead_worker_has_told_is_counted_on(workers: list[WorkerMetrics]) -> None:
    one, other = workers
    other.declare(CALLS, method="stat").value = 4
    other.declare(WAITING, lambda: 2)
    other.failures.add("call", "stat", "alice", "NotFound", "nothing there")
    other.publish()
    successor = WorkerMetrics(other._worker)
    successor.declare(CALLS, method="stat").value = 1
    successor.declare(WAITING, lambda: 0)
    assert value(one, CALLS, "stat") == 4  # also before it has told anything
    successor.publish()
    assert value(one, CALLS, "stat") == 5 and value(one, WAITING) == 0
    assert [failure.text for failure in one.failures.newest()] == ["nothing there"]


def test_the_failures_of_all_workers_are_in_the_order_of_time(workers: list[WorkerMetrics]) -> None:
    for number, each in enumerate((*workers, *workers)):
        each.failures.add("call", "stat", "alice", "NotFound", f"failure {number}")
        each.publish()
    for each in workers:
        assert [failure.text for failure in each.failures.newest()] == [f"failure {n}" for n in (3, 2, 1, 0)]


def test_a_report_is_told_before_it_is_given(workers: list[WorkerMetrics]) -> None:
    one, other = workers
    one.declare(CALLS, method="stat").value = 3
    one.report({})
    assert value(other, CALLS, "stat") == 3


def test_a_torn_place_of_the_board_is_not_read() -> None:
    board = Board(2)
    assert board.read(0) == b""
    board.write(0, b"first")
    board._places[0][-1] = 1
    assert board.read(0) == b"first"
    place = board._places[0]
    place[16:21] = b"secon"  # a writer that has not yet written the checksum
    assert board.read(0) == b"first"
    board.write(0, b"x" * BOARD_BYTES)  # no room
    board.write(0, b"second")
    assert board.read(0) == b"second" and board.read(1) == b""
