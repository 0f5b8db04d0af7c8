"""The rate of a user holds over all workers."""

from dataclasses import dataclass

import pytest

from dieselfs_server.admission.throttle import MEMBERSHIP_S
from dieselfs_server.workers.shared_rates import RateTables, SharedRates


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers(clock: Clock) -> list[SharedRates]:
    tables = RateTables()
    return [SharedRates(tables, clock) for _ in range(2)]


def test_workers_take_from_one_bucket(workers: list[SharedRates], clock: Clock) -> None:
    one, other = workers
    rate = {"bytes_per_s": 1000}
    assert one.bytes_wait_s("alice", None, rate, 1000, 0.0) == 0.0
    assert other.bytes_wait_s("alice", None, rate, 500, 0.0) == 0.5
    assert one.bytes_wait_s("alice", None, rate, 500, 0.0) == 1.0
    assert one.bytes_wait_s("bob", None, rate, 1000, 0.0) == 0.0
    clock.now_s += 1.5
    assert other.bytes_wait_s("alice", None, rate, 500, 0.0) == 0.0


def test_a_job_is_known_to_all_workers_while_its_nodes_renew(
    workers: list[SharedRates], clock: Clock
) -> None:
    one, other = workers
    one.join("alice", "10.0.0.1", "data", "train", 0.0)
    job = other.job_of("alice", "10.0.0.1", "data", 0.0)
    assert job is not None and one.job_of("alice", "10.0.0.1", "data", 0.0) == job
    assert other.job_of("alice", "10.0.0.2", "data", 0.0) is None
    rate = {"job_bytes_per_s": 1000}
    assert one.bytes_wait_s("alice", job, rate, 1500, 0.0) == 0.5
    assert other.bytes_wait_s("alice", job, rate, 500, 0.0) == 1.0
    clock.now_s += MEMBERSHIP_S
    assert other.job_of("alice", "10.0.0.1", "data", 0.0) is None
