"""A server dies while the nodes of a job fetch from it: another one takes its place, for bytes and for the roll."""

from dieselfs.limits import READ_TIMEOUT_S
from lab.cluster import ETCD_PORT, Cluster
from lab.job import Job, store
from lab.load import load
from lab.network import Host
from lab.reader import read_once

FILES = 384
FILE_BYTES = 16_384
FILES_PER_CHUNK = 8
NODES = 3
STORAGE_BYTES_PER_S = 2_000_000
"""Slow enough for chunks to be on their way when the server dies."""


def check_that_a_server_is_replaced(cluster: Cluster, servers: str) -> None:
    hosts = [cluster.net.host(f"node-{number}") for number in range(NODES)]
    stored = store(cluster, hosts[0], "photos", FILES, FILE_BYTES, FILES_PER_CHUNK)
    for storage in cluster.storages:
        cluster.net.rate(storage.host, STORAGE_BYTES_PER_S)
    with Job("training", cluster, stored.name, hosts, servers) as job:
        job.mount()
        lost = job.nodes[-1]
        with load(job.nodes) as readers:
            cluster.busiest().host.kill()
            readers.wait_for_reads(job.nodes, FILES)
        verdict = readers.verdict(job.nodes)
        assert verdict.failures == () and verdict.worst_s < READ_TIMEOUT_S
        lost.host.kill()
        job.mount(lost)  # which takes its place on the roll
        job.wait_until_complete()
        read_once(str(lost.place), "0")
        assert lost.stats()["requested"]["failed"] == 0


def test_a_server_of_the_list_is_replaced_by_the_other(cluster: Cluster) -> None:
    check_that_a_server_is_replaced(cluster, cluster.servers)


def test_a_server_that_etcd_knows_is_replaced_by_the_other(registered_cluster: Cluster, etcd: Host) -> None:
    check_that_a_server_is_replaced(registered_cluster, f"etcd://{etcd.address}:{ETCD_PORT}")
