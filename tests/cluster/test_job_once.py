"""Each chunk leaves the servers once for each job, however many nodes that has, and whichever of them reads it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count

import pytest

from lab.cluster import Cluster
from lab.job import Job, JobNode, Stored, store
from lab.namespace import wait_for
from lab.network import Host
from lab.reader import read_once

FILES = 128
FILE_BYTES = 32_768
FILES_PER_CHUNK = 4
NODES_MAX = 4
WARM_TIMEOUT_S = 60.0
ATTEMPTS = 3
"""A machine that lets a node wait for seconds makes the others take it for dead; that is not what this is about."""


@pytest.fixture(scope="module")
def hosts(shared_cluster: Cluster) -> list[Host]:
    return [shared_cluster.net.host(f"node-{number}") for number in range(NODES_MAX)]


@pytest.fixture(scope="module")
def stored(shared_cluster: Cluster, hosts: list[Host]) -> Stored:
    return store(shared_cluster, hosts[0], "photos", FILES, FILE_BYTES, FILES_PER_CHUNK)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """For jobs: no two have the same name."""
    return count(1)


def read_all(node: JobNode) -> None:
    """Every file, each verified, and its pages dropped."""
    for number in range(FILES):
        read_once(str(node.place), f"{number}")


def read_everywhere(job: Job) -> None:
    with ThreadPoolExecutor(len(job.nodes)) as readers:
        list(readers.map(read_all, job.nodes))


def is_disturbed(job: Job) -> bool:
    """Whether a node has found another one or a server silent; then it asks again, and chunks may leave twice."""
    all_stats = [node.stats() for node in job.nodes]
    return any(stats["peers"]["failures"] or stats["servers"]["failures"] for stats in all_stats)


def check_accounts(job: Job, stored: Stored) -> None:
    """Each chunk was fetched from the servers once; what a node has asked for, it has had."""
    all_stats = [node.stats() for node in job.nodes]
    assert sum(stats["node_cache"]["fetched_chunks"] for stats in all_stats) == stored.chunks
    assert sum(stats["node_cache"]["fetched_bytes"] for stats in all_stats) == stored.chunk_bytes
    assert sum(stats["job"]["own_chunks"] for stats in all_stats) == stored.chunks
    for stats in all_stats:
        asked = stats["requested"]
        assert (asked["from_servers"], asked["failed"]) == (0, 0)
        assert asked["extents"] == asked["from_node"] + asked["from_peers"]


def is_warm(node: JobNode) -> bool:
    return bool(node.stats()["job"]["warmth"] == 1)


def sent_bytes(cluster: Cluster) -> int:
    """Bytes of chunks that the servers have sent."""
    total_bytes = 0
    for storage in cluster.storages:
        with closing(storage.server.client()) as client:
            total_bytes += client.status().metrics["payloads.sent_bytes"]
    return total_bytes


def read_twice(job: Job, stored: Stored, is_warmed: bool) -> bool:
    """All nodes read everything, twice; False if the machine did not let them do it undisturbed."""
    job.mount()
    if is_warmed:
        for node in job.nodes:
            wait_for(partial(is_warm, node), f"{node.name} is warm", WARM_TIMEOUT_S)
        assert sum(node.loads() for node in job.nodes) == stored.chunks
    read_everywhere(job)
    loads = [node.loads() for node in job.nodes]
    read_everywhere(job)
    if is_disturbed(job):
        return False
    check_accounts(job, stored)
    assert [node.loads() for node in job.nodes] == loads
    return True


@pytest.mark.parametrize("policy", ["on-demand", "oneshot"])
@pytest.mark.parametrize("nodes", [1, NODES_MAX])
def test_each_chunk_leaves_the_servers_once(
    shared_cluster: Cluster,
    hosts: list[Host],
    stored: Stored,
    numbers: Iterator[int],
    nodes: int,
    policy: str,
) -> None:
    is_shown = False
    for _ in range(ATTEMPTS):
        before_bytes = sent_bytes(shared_cluster)
        with Job(f"job-{next(numbers)}", shared_cluster, stored.name, hosts[:nodes], policy=policy) as job:
            is_shown = read_twice(job, stored, policy == "oneshot")
            # Before nodes leave: those that stay fetch the chunks of those that have left.
            sent = sent_bytes(shared_cluster) - before_bytes
            job.unmount()
        if is_shown:
            assert sent == stored.chunk_bytes
            break
    assert is_shown, f"nodes found each other or a server silent in each of {ATTEMPTS} runs"


def read_share(node: JobNode, rank: int, names: list[str], is_local: bool) -> None:
    """The files of a rank in one epoch, in its order."""
    nodes = f",nodes={'+'.join(names)}" if is_local else ""
    order = node.place / f".dieselfs/shuffle/group=0,rank={rank},world={len(names)},batch={FILES // 2}{nodes}"
    for path in order.read_text().split():
        read_once(str(node.place), path)


def peer_bytes(cluster: Cluster, hosts: list[Host], stored: Stored, name: str, is_local: bool) -> int:
    """What the nodes of a job get from each other in an epoch in which each reads its share."""
    with Job(name, cluster, stored.name, hosts, policy="on-demand") as job:
        job.mount()
        names = [node.name for node in job.nodes]
        with ThreadPoolExecutor(len(names)) as readers:
            list(readers.map(read_share, job.nodes, count(), [names] * len(names), [is_local] * len(names)))
        received = [node.stats()["peers"]["received_bytes"] for node in job.nodes]
        job.unmount()
    return sum(received)


def test_in_a_local_assignment_nodes_read_what_they_own(
    shared_cluster: Cluster, hosts: list[Host], stored: Stored, numbers: Iterator[int]
) -> None:
    local, even = (
        peer_bytes(shared_cluster, hosts, stored, f"job-{next(numbers)}", is_local)
        for is_local in (True, False)
    )
    assert 0 < local < even / 2
