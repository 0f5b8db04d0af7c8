"""A node dies, stops, is cut off, or is slow, while the others of its job read: no read fails, and it comes back."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from dieselfs.cluster.failure_detector import PEER_RETURN_S
from dieselfs.limits import READ_TIMEOUT_S
from lab.cluster import Cluster
from lab.job import Job, JobNode, Stored, store
from lab.load import Readers, load
from lab.namespace import wait_for
from lab.network import Host
from lab.reader import read_once
from lab.tcp_proxy import TcpProxy, intercepted

FILES = 1536
FILE_BYTES = 16_384
MEMORY = "24MiB"
"""Of each node: as much as the dataset, most of it for what the node owns. So nearly every read asks another node."""
FILES_PER_CHUNK = 8
NODES = 5
KILLED_AFTER_READS = 20
"""Of each reader. The simulator (`tests/simulation`) loses nodes at all other times."""
FILES_PER_S = 50
"""Of each reader: it leaves the machine time for all the rest."""
READS = 25
"""Of each reader, to show that it goes on: they go to all nodes of the job."""
SLOW_BYTES_PER_S = 1_000
"""A file takes longer than a peer may take to answer."""
RETURN_TIMEOUT_S = 6 * PEER_RETURN_S


@pytest.fixture(scope="module")
def hosts(shared_cluster: Cluster) -> list[Host]:
    return [shared_cluster.net.host(f"node-{number}") for number in range(NODES)]


@pytest.fixture(scope="module")
def stored(shared_cluster: Cluster, hosts: list[Host]) -> Stored:
    return store(shared_cluster, hosts[0], "photos", FILES, FILE_BYTES, FILES_PER_CHUNK)


@pytest.fixture(scope="module")
def job(shared_cluster: Cluster, hosts: list[Host], stored: Stored) -> Iterator[Job]:
    """Each test leaves it as it was: all nodes there, nobody doubted."""
    with Job("training", shared_cluster, stored.name, hosts, memory=MEMORY) as job:
        job.mount()
        yield job


def is_trusted(node: JobNode, other: JobNode) -> bool:
    """Whether `node` asks the other one for all its chunks."""
    stats = node.stats()
    return other.name in stats["job"]["members"] and other.name not in stats["job"]["suspected"]


def is_avoided(node: JobNode, other: JobNode) -> bool:
    """Whether it has been found out, or is off the roll by now: then nobody asks it."""
    return not is_trusted(node, other)


def answered(node: JobNode) -> int:
    return int(node.stats()["served"]["chunks"])


def check_that_all_is_well(readers: Readers, nodes: list[JobNode]) -> None:
    """Of what these nodes' readers have seen."""
    verdict = readers.verdict(nodes)
    assert verdict.reads > 0 and verdict.failures == ()
    assert verdict.worst_s < READ_TIMEOUT_S


def wait_until_avoided(nodes: list[JobNode], lost: JobNode) -> None:
    for node in nodes:
        wait_for(partial(is_avoided, node, lost), f"{node.name} avoids {lost.name}", RETURN_TIMEOUT_S)


def wait_until_trusted(nodes: list[JobNode], lost: JobNode) -> None:
    """Until it has its share back, and is asked for it."""
    for node in nodes:
        wait_for(partial(is_trusted, node, lost), f"{node.name} trusts {lost.name}", RETURN_TIMEOUT_S)
    before = answered(lost)
    wait_for(lambda: answered(lost) > before, f"{lost.name} is asked", RETURN_TIMEOUT_S)


def test_a_node_that_is_killed_costs_the_others_no_read(job: Job) -> None:
    *others, lost = job.nodes
    with load(job.nodes, readers_each=2, files_per_s=FILES_PER_S) as readers:
        readers.wait_for_reads(others, KILLED_AFTER_READS)
        lost.host.kill()
        readers.wait_for_reads(others, READS)
        wait_until_avoided(others, lost)
        job.mount(lost)
        readers.wait_for_reads(others, READS)
        read_once(str(lost.place), "0")
    check_that_all_is_well(readers, others)
    with load(job.nodes, files_per_s=FILES_PER_S):
        wait_until_trusted(others, lost)


def test_nodes_that_stop_are_cut_off_or_slow_take_their_shares_back(
    shared_cluster: Cluster, job: Job
) -> None:
    net = shared_cluster.net
    *others, stopped, cut_off, slow = job.nodes
    with load(others, readers_each=2, files_per_s=FILES_PER_S) as readers:
        stopped.host.stop()
        net.cut_off(cut_off.host)
        net.rate(slow.host, SLOW_BYTES_PER_S)
        try:
            for lost in (stopped, cut_off, slow):
                wait_until_avoided(others, lost)
            readers.wait_for_reads(others, READS)
        finally:
            net.rate(slow.host, None)
            net.heal(cut_off.host)
            stopped.host.resume()
        for lost in (stopped, cut_off, slow):
            wait_until_trusted(others, lost)
    check_that_all_is_well(readers, others)


def is_used(proxy: TcpProxy) -> bool:
    return proxy.passed().bytes_to_clients > FILE_BYTES


def test_what_connections_do_to_the_bytes_of_a_node_reaches_no_reader(
    shared_cluster: Cluster, hosts: list[Host], stored: Stored
) -> None:
    with ExitStack() as stack:
        job = stack.enter_context(Job("proxied", shared_cluster, stored.name, hosts[:4], memory=MEMORY))
        job.mount()
        *others, asked = job.nodes
        port = asked.port()
        altered, cut, stalled = (
            stack.enter_context(intercepted(node.host, asked.host, port)) for node in others
        )
        with load(others, readers_each=2, files_per_s=FILES_PER_S) as readers:
            for proxy in (altered, cut, stalled):
                wait_for(partial(is_used, proxy), "bytes pass")
            altered.alter_after(FILE_BYTES)
            cut.cut_after(FILE_BYTES)
            stalled.stall()
            wait_until_avoided(others, asked)
            assert (altered.passed().alterations, cut.passed().cuts) == (1, 1)
            assert all(node.stats()["peers"]["failures"] for node in others)
            readers.wait_for_reads(others, READS)
            stalled.heal()
            wait_until_trusted(others[1:], asked)
        check_that_all_is_well(readers, others)
