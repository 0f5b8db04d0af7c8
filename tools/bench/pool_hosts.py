"""Hosts with a dataset on a server, and the daemons of a job that hold it in memory together.

This module starts processes, and asks them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.figures import Run, RunFailed
from bench.stopwatch import family_processor_s
from bench.trees import SMALL_FILE_BYTES, SourceTree, make_tree
from dieselfs.cache.job import Job
from dieselfs.cache.member import Member
from dieselfs.cache.node_socket import NodeClient, job_socket_path, runtime_folder
from dieselfs.cache.secret import JobSecret, find_secret
from dieselfs.dataset import Dataset, connect
from dieselfs.limits import LIBRARY_MEMORY_BYTES
from dieselfs.meta.snapshot import Snapshot
from dieselfs.peers.client import PeerClient
from dieselfs.upload import TreeUpload, walk_source
from lab.cluster import Cluster, running_cluster
from lab.network import Host, Network

DATASET = "pool"
LOAD_TIMEOUT_S = 60.0
JOIN_TIMEOUT_S = 90.0
_POLL_S = 0.02
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Stage:
    """The dataset, as a tree on the local file system and on a server, and the hosts that are to read it."""

    tree: SourceTree
    cluster: Cluster
    nodes: Sequence[Host]
    snapshot: Snapshot


@contextmanager
def running_stage(folder: Path, files: int, nodes: int) -> Iterator[Stage]:
    """So many files of 4 KB, and so many hosts, until the end of the block. Raises Unsuitable."""
    with Network() as net, running_cluster(net, servers=1) as cluster:
        hosts = [net.host(f"node-{number}") for number in range(nodes)]
        tree = make_tree(folder / "source", files, SMALL_FILE_BYTES)
        with hosts[0].inside(), Dataset(cluster.settings(hosts[0]), DATASET, is_created=False) as dataset:
            upload = TreeUpload(dataset.client, dataset.create(), None)
            report = upload.run(lambda failed: walk_source(os.fsencode(tree.folder), b"", failed))
            if report.counters.stored_bytes != tree.size_bytes:
                raise RunFailed(f"not everything is stored: {report.failures}")
            dataset.refresh()
            yield Stage(tree, cluster, hosts, dataset.snapshot)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A daemon on each of some hosts, members of one job all of them, with nothing in memory yet."""

    stage: Stage
    name: str
    secret: JobSecret
    hosts: Sequence[Host]
    daemons: Sequence["subprocess.Popen[bytes]"]
    members: Sequence[Member]

    def connect(self, memory_bytes: int = LIBRARY_MEMORY_BYTES) -> Dataset:
        """The dataset, for a process on one of the hosts, which has the host's environment."""
        cluster = self.stage.cluster
        return connect(
            DATASET,
            server=cluster.servers,
            key_file=str(cluster.key_file),
            memory_bytes=memory_bytes,
            job=self.name,
        )

    def load(self) -> Run:
        """Have everything fetched into the memory of the job. Raises RunFailed."""
        key, digest = self.secret.peer_key(), self.stage.snapshot.digest
        with self.hosts[0].inside(), closing(PeerClient(key, digest)) as peers:
            for member in self.members:
                peers.warmth(member)  # so that it has a connection
            before_s = self._processor_s()
            start_s = time.perf_counter()
            for member in self.members:
                peers.warmth(member, is_to_warm=True)
            for member in self.members:
                while (warmth := peers.warmth(member)).kept_bytes < warmth.wanted_bytes:
                    if time.perf_counter() > start_s + LOAD_TIMEOUT_S:
                        raise RunFailed(f"{member.node} is not warm after {LOAD_TIMEOUT_S:g} s")
                    time.sleep(_POLL_S)
            duration_s = time.perf_counter() - start_s
        return Run(
            duration_s, {name: spent_s - before_s[name] for name, spent_s in self._processor_s().items()}
        )

    def _processor_s(self) -> dict[str, float]:
        (storage,) = self.stage.cluster.storages
        return {
            "daemons": sum(family_processor_s(daemon.pid) for daemon in self.daemons),
            "server": family_processor_s(storage.server.process.pid),
        }

    def kill(self, number: int) -> None:
        """As a power cut does it, but for the host, which says that nobody listens there any more."""
        self.hosts[number].kill(self.daemons[number])


@contextmanager
def running_job(stage: Stage, hosts: Sequence[Host], memory_bytes: int) -> Iterator[RunningJob]:
    """A job of all these hosts, each with so much memory, until the end of the block; none of it before."""
    cluster, name = stage.cluster, f"bench-{next(_numbers)}"
    secret = find_secret(None, str(cluster.key_file), DATASET, name)
    daemons: list[subprocess.Popen[bytes]] = []
    members: Sequence[Member] = ()
    try:
        for rank, host in enumerate(hosts):
            command = [sys.executable, "-P", "-m", "dieselfs_client.cache_daemon", DATASET]
            command += ["--memory", str(memory_bytes), "--server", cluster.servers]
            command += ["--key-file", str(cluster.key_file), "--job", name, "--job-nodes", str(len(hosts))]
            command += ["--job-node", host.name, "--job-rank", str(rank), "--job-host", host.address]
            daemons.append(host.start(command))
        for rank, host in enumerate(hosts):
            members = _wait_until_joined(stage, host, Job(name, rank, len(hosts), host.name), secret)
        yield RunningJob(stage, name, secret, hosts, daemons, members)
    finally:
        for host, daemon in zip(hosts, daemons, strict=False):
            if daemon.poll() is None:
                host.kill(daemon)


def _wait_until_joined(stage: Stage, host: Host, job: Job, secret: JobSecret) -> Sequence[Member]:
    """The members of a job, as soon as the daemon of a host knows them all. Raises RunFailed."""
    folder, digest = runtime_folder(host.environment()), stage.snapshot.digest
    path = job_socket_path(folder, DATASET, digest, job, secret.fingerprint())
    end_s = time.monotonic() + JOIN_TIMEOUT_S
    while time.monotonic() < end_s:
        with closing(NodeClient(path, digest)) as node:
            told = node.members()
        if told is not None and told.members is not None and len(told.members) == job.size:
            return told.members
        time.sleep(_POLL_S)
    raise RunFailed(f"{host.name} does not know all nodes after {JOIN_TIMEOUT_S:g} s: {host.log()[-2000:]}")
