"""What limits an epoch, for jobs whose figures can be worked out by hand."""

import dataclasses

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.prediction import (
    COMPUTING,
    FETCHING,
    PEERS,
    READING,
    SERVERS,
    Cost,
    Job,
    Speeds,
    first_epoch,
    later_epoch,
    resident_share,
)

FILES, BYTES = 1_000_000, 100 * 10**9
SPEEDS = Speeds(first=Cost(50e-6, 1e-9), later=Cost(20e-6, 0.2e-9), fetch_bytes_s=1e9)
JOB = Job(nodes=1, memory_bytes=200 * 10**9, servers_bytes_s=10e9, network_bytes_s=5e9)


def test_a_cost_goes_through_two_measured_points() -> None:
    cost = Cost.of((60e-6, 10_000), (150e-6, 100_000))
    assert cost.of_files(1, 10_000) == pytest.approx(60e-6)
    assert cost.of_files(1, 100_000) == pytest.approx(150e-6)


def test_noise_makes_no_negative_cost() -> None:
    assert Cost.of((60e-6, 10_000), (50e-6, 100_000)) == Cost(60e-6, 0.0)
    assert Cost.of((1e-6, 10_000), (200e-6, 100_000)).file_s == 0.0


def test_one_node_reads_first_from_the_servers_and_then_from_its_memory() -> None:
    first, later = first_epoch(FILES, BYTES, JOB, SPEEDS), later_epoch(FILES, BYTES, JOB, SPEEDS)
    assert first.parts_s == pytest.approx({READING: 150, FETCHING: 100, SERVERS: 10, PEERS: 0, COMPUTING: 0})
    assert first.seconds == pytest.approx(150)
    assert (first.limit, first.from_servers_bytes) == (READING, BYTES)
    assert later.parts_s == pytest.approx({READING: 40, FETCHING: 0, SERVERS: 0, PEERS: 0, COMPUTING: 0})
    assert later.from_servers_bytes == 0


def test_what_does_not_fit_is_fetched_again() -> None:
    job = dataclasses.replace(JOB, memory_bytes=BYTES // 4)
    assert resident_share(BYTES, job) == 0.25
    later = later_epoch(FILES, BYTES, job, SPEEDS)
    assert later.from_servers_bytes == pytest.approx(0.75 * BYTES)
    assert later.parts_s[READING] == pytest.approx(0.25 * 40 + 0.75 * 150)


def test_many_nodes_wait_for_the_servers_once_if_they_pool_their_memory() -> None:
    nodes = dataclasses.replace(JOB, nodes=100, memory_bytes=10**9)
    pooled = dataclasses.replace(nodes, is_pooled=True)
    assert first_epoch(FILES, BYTES, nodes, SPEEDS).limit == SERVERS
    assert later_epoch(FILES, BYTES, nodes, SPEEDS).from_servers_bytes == pytest.approx(0.99 * BYTES)
    later = later_epoch(FILES, BYTES, pooled, SPEEDS)
    assert later.from_servers_bytes == 0
    assert later.from_peers_bytes == pytest.approx(0.99 * BYTES)
    assert later.parts_s[PEERS] == pytest.approx(0.99 * BYTES / 100 / 5e9)


def test_readers_share_the_processors() -> None:
    job = dataclasses.replace(JOB, readers=8, processors=4)
    assert later_epoch(FILES, BYTES, job, SPEEDS).parts_s[READING] == pytest.approx(10)
    assert first_epoch(FILES, BYTES, job, SPEEDS).parts_s[READING] == pytest.approx(150)


def test_reading_hides_behind_computing() -> None:
    job = dataclasses.replace(JOB, computing_s=120.0)
    first, later = first_epoch(FILES, BYTES, job, SPEEDS), later_epoch(FILES, BYTES, job, SPEEDS)
    assert [first.waiting_s, first.seconds] == pytest.approx([30, 150])
    assert (later.waiting_s, later.seconds, later.limit) == (0, 120, COMPUTING)


@pytest.mark.parametrize(
    "wrong",
    [{"nodes": 0}, {"readers": 0}, {"memory_bytes": -1}, {"servers_bytes_s": 0.0}, {"network_bytes_s": 0.0}],
)
def test_a_job_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Job(**{**dataclasses.asdict(JOB), **wrong})


def test_an_empty_dataset_takes_no_time() -> None:
    assert first_epoch(0, 0, JOB, SPEEDS).seconds == later_epoch(0, 0, JOB, SPEEDS).seconds == 0
