"""Which worker gets a connection."""

from collections import Counter

from dieselfs_server.workers.assignment import Assignment


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
