"""What limits an epoch, for jobs whose figures can be worked out by hand."""

import dataclasses

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB
from dieselfs_client.daemon.node import allotment_of
from dieselfs_client.memory.budget import node_cache_evictable_bytes
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_tools.observe.prediction import (
    COMPUTING,
    FETCHING,
    NETWORK,
    READING,
    SERVERS,
    Cost,
    Job,
    Point,
    Speeds,
    first_epoch,
    later_epoch,
    predicted_job,
)
from tests.support.dataset import TreeEntry, pack_entries

FILES, BYTES = 1_000_000, 100 * 10**9
SPEEDS = Speeds(first=Cost(2, 50e-6, 1e-9), later=Cost(1, 20e-6, 0.2e-9), fetch_bytes_s=1e9)
JOB = Job(nodes=1, kept_bytes=200 * 10**9, servers_bytes_s=10e9, network_bytes_s=5e9)


def epoch_of(cost: Cost, files: int, file_bytes: int) -> Point:
    return Point(cost.start_s + cost.of_files(files, files * file_bytes), files, files * file_bytes)


def test_a_cost_goes_through_three_measured_epochs() -> None:
    known = Cost(0.2, 60e-6, 2e-9)
    found = Cost.of(
        epoch_of(known, 100, 4096), epoch_of(known, 10_000, 4096), epoch_of(known, 1_500, 131_072)
    )
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(known))


@pytest.mark.parametrize(
    ("few_s", "small_s", "large_s"), [(0.5, 0.4, 0.3), (0.001, 0.5, 0.02), (0.001, 0.01, 9.0)]
)
def test_noise_makes_no_negative_cost(few_s: float, small_s: float, large_s: float) -> None:
    found = Cost.of(
        Point(few_s, 100, 100 * 4096), Point(small_s, 10_000, 10_000 * 4096), Point(large_s, 100, 100 << 17)
    )
    assert min(dataclasses.astuple(found)) >= 0


def test_one_node_reads_first_from_the_servers_and_then_from_its_memory() -> None:
    first, later = first_epoch(FILES, BYTES, JOB, SPEEDS), later_epoch(FILES, BYTES, JOB, SPEEDS)
    assert first.parts_s == pytest.approx(
        {READING: 152, FETCHING: 100, SERVERS: 10, NETWORK: 20, COMPUTING: 0}
    )
    assert first.seconds == pytest.approx(152)
    assert (first.limit, first.from_servers_bytes) == (READING, BYTES)
    assert later.parts_s == pytest.approx({READING: 41, FETCHING: 0, SERVERS: 0, NETWORK: 0, COMPUTING: 0})
    assert later.from_servers_bytes == 0


def test_what_does_not_fit_is_fetched_again() -> None:
    job = dataclasses.replace(JOB, kept_bytes=BYTES // 4)
    assert job.kept_share(BYTES) == job.resident_share(BYTES) == 0.25
    later = later_epoch(FILES, BYTES, job, SPEEDS)
    assert later.from_servers_bytes == pytest.approx(0.75 * BYTES)
    assert later.parts_s[READING] == pytest.approx(1 + 0.25 * 40 + 0.75 * 150)


def test_each_node_fetches_all_that_it_keeps_and_only_its_own_files_of_the_rest() -> None:
    ample = dataclasses.replace(JOB, nodes=4)
    first = first_epoch(FILES, BYTES, ample, SPEEDS)
    assert first.from_servers_bytes == pytest.approx(4 * BYTES)
    assert first.parts_s[READING] == pytest.approx(2 + 150 - 0.75 * 40), "it reads a quarter, and stores all"
    none = dataclasses.replace(ample, kept_bytes=0)
    first = first_epoch(FILES, BYTES, none, SPEEDS)
    assert first.from_servers_bytes == pytest.approx(BYTES)
    assert first.parts_s[READING] == pytest.approx(2 + 150 / 4)


def test_a_pool_fetches_once_and_sends_what_its_nodes_store() -> None:
    kept = dataclasses.replace(JOB, nodes=4, is_pooled=True, pooled_bytes=BYTES // 4)
    first, later = first_epoch(FILES, BYTES, kept, SPEEDS), later_epoch(FILES, BYTES, kept, SPEEDS)
    assert (first.from_servers_bytes, first.from_peers_bytes) == pytest.approx((BYTES, 3 * BYTES))
    assert first.parts_s[NETWORK] == pytest.approx(BYTES / 5e9), "a node receives the dataset once"
    assert (later.from_servers_bytes, later.from_peers_bytes) == (0, 0)


def test_many_nodes_wait_for_the_servers_once_if_they_pool_their_memory() -> None:
    nodes = dataclasses.replace(JOB, nodes=100, kept_bytes=0)
    pooled = dataclasses.replace(nodes, is_pooled=True, pooled_bytes=10**9)
    assert first_epoch(FILES, BYTES, nodes, SPEEDS).limit == SERVERS
    assert later_epoch(FILES, BYTES, nodes, SPEEDS).from_servers_bytes == pytest.approx(BYTES)
    later = later_epoch(FILES, BYTES, pooled, SPEEDS)
    assert pooled.resident_share(BYTES) == 1 and later.from_servers_bytes == 0
    assert later.from_peers_bytes == pytest.approx(0.99 * BYTES)
    assert later.parts_s[NETWORK] == pytest.approx(0.99 * BYTES / 100 / 5e9)


def test_readers_share_the_processors() -> None:
    job = dataclasses.replace(JOB, readers=8, processors=4)
    assert later_epoch(FILES, BYTES, job, SPEEDS).parts_s[READING] == pytest.approx(11)
    assert first_epoch(FILES, BYTES, job, SPEEDS).parts_s[READING] == pytest.approx(152)


def test_reading_hides_behind_computing() -> None:
    job = dataclasses.replace(JOB, computing_s=120.0)
    first, later = first_epoch(FILES, BYTES, job, SPEEDS), later_epoch(FILES, BYTES, job, SPEEDS)
    assert [first.waiting_s, first.seconds] == pytest.approx([32, 152])
    assert (later.waiting_s, later.seconds, later.limit) == (0, 120, COMPUTING)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"readers": 0},
        {"kept_bytes": -1},
        {"pooled_bytes": -1},
        {"servers_bytes_s": 0.0},
        {"network_bytes_s": 0.0},
    ],
)
def test_a_job_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Job(**{**dataclasses.asdict(JOB), **wrong})


def test_an_empty_dataset_takes_the_beginning_of_an_epoch() -> None:
    assert first_epoch(0, 0, JOB, SPEEDS).seconds == 2
    assert later_epoch(0, 0, JOB, SPEEDS).seconds == 1


PACKED_FILES, PACKED_FILE_BYTES = 48, 1 * MIB
SIZE_BYTES = PACKED_FILES * PACKED_FILE_BYTES
SNAPSHOT = pack_entries(
    [TreeEntry(b"%d" % number, 0o100644, 0, bytes(PACKED_FILE_BYTES)) for number in range(PACKED_FILES)]
).snapshot
RATES = {"servers_bytes_s": 1e9, "network_bytes_s": 1e9}


@pytest.mark.parametrize("memory_bytes", [24 * MIB, 64 * MIB, 256 * MIB])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_node_keeps_what_its_mount_pins(nodes: int, memory_bytes: int) -> None:
    alone = predicted_job(SNAPSHOT, SIZE_BYTES, memory_bytes, nodes, False, **RATES)
    allotment = allotment_of(SNAPSHOT, MountOptions(memory_bytes=memory_bytes))
    assert (alone.kept_bytes, alone.pooled_bytes) == (allotment.pinned, 0)

    pooled = predicted_job(SNAPSHOT, SIZE_BYTES, memory_bytes, nodes, True, **RATES)
    allotment = allotment_of(SNAPSHOT, MountOptions(memory_bytes=memory_bytes), nodes)
    node_cache = allotment.node_cache
    assert pooled.kept_bytes == allotment.pinned
    assert pooled.pooled_bytes == node_cache - node_cache_evictable_bytes(node_cache, nodes) > 0


def test_a_plan_of_some_files_keeps_its_part() -> None:
    job = predicted_job(SNAPSHOT, SIZE_BYTES // 2, 32 * MIB, 1, False, **RATES)
    whole = predicted_job(SNAPSHOT, SIZE_BYTES, 32 * MIB, 1, False, **RATES)
    assert job.kept_share(SIZE_BYTES // 2) == pytest.approx(whole.kept_share(SIZE_BYTES))
    assert 0 < whole.kept_share(SIZE_BYTES) < 1
