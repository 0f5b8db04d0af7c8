"""Which worker gets a connection, and when a dead worker is replaced."""

from collections import Counter

from dieselfs_server.workers.decisions import (
    DEATHS_MAX,
    FAILURES_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    WINDOW_S,
    Assignment,
    Replacement,
)


def assigned(workers: int) -> Assignment:
    assignment = Assignment()
    for worker in range(workers):
        assignment.begin(worker)
    return assignment


def test_the_connections_of_each_address_are_spread_evenly() -> None:
    assignment = assigned(4)
    found = {
        peer: Counter(assignment.assign(peer, assignment.workers)[0] for _ in range(10))
        for peer in ("10.0.0.1", "10.0.0.2", "2001:db8::1")
    }
    for of_peer in found.values():
        assert max(of_peer.values()) - min(of_peer.values()) <= 1
    totals = [assignment.count(worker) for worker in range(4)]
    assert max(totals) - min(totals) <= 1  # what one address has more, another one has less


def test_one_connection_of_each_of_many_addresses_is_spread_too() -> None:
    assignment = assigned(3)
    for number in range(30):
        assignment.assign(f"10.0.0.{number}", assignment.workers)
    assert [assignment.count(worker) for worker in range(3)] == [10, 10, 10]


def test_a_place_that_has_come_free_is_taken_first() -> None:
    assignment = assigned(2)
    numbers = [assignment.assign("10.0.0.1", assignment.workers) for _ in range(4)]
    for worker, number in numbers:
        if worker == 1:
            assignment.ended(number)
    assert [assignment.assign("10.0.0.1", assignment.workers)[0] for _ in range(2)] == [1, 1]


def test_the_connections_of_a_dead_worker_are_forgotten() -> None:
    assignment = assigned(2)
    numbers = [assignment.assign("10.0.0.1", assignment.workers) for _ in range(4)]
    assignment.end(0)
    assert {assignment.assign("10.0.0.2", assignment.workers)[0] for _ in range(3)} == {1}
    assignment.begin(0)
    for _, number in numbers:  # what the dead one had is unknown, and must not be counted for its successor
        assignment.ended(number)
    assert [assignment.count(worker) for worker in (0, 1)] == [0, 3]


def test_a_worker_that_served_is_replaced_at_once() -> None:
    replacement = Replacement()
    assert [replacement.died(now_s, was_ready=True) for now_s in (1.0, 2.0)] == [1.0, 2.0]


def test_one_that_cannot_start_is_replaced_ever_later_and_then_the_server_ends() -> None:
    replacement = Replacement()
    starts = [replacement.died(0.0, was_ready=False) for _ in range(FAILURES_MAX + 1)]
    assert starts[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert starts[-2:] == [PAUSE_S_MAX, None]


def test_a_start_that_succeeds_ends_the_row() -> None:
    replacement = Replacement()
    for _ in range(3 * FAILURES_MAX):
        assert replacement.died(0.0, was_ready=False) == PAUSE_S
        assert replacement.died(0.0, was_ready=True) == 0.0


def test_workers_that_die_all_the_time_end_the_server() -> None:
    slow, fast = Replacement(), Replacement()
    times_s = [2 * number * WINDOW_S / DEATHS_MAX for number in range(3 * DEATHS_MAX)]
    assert [slow.died(now_s, was_ready=True) for now_s in times_s] == times_s
    assert [fast.died(0.0, was_ready=True) for _ in range(DEATHS_MAX + 1)] == [0.0] * DEATHS_MAX + [None]
