"""Hosts with the daemons of a job, and readers through the library or a rival's client. This module starts processes.

Each `Reader` runs in its own process: it enters the namespace of its host, connects, and returns the measured work.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from subprocess import Popen

from bench.harness.figures import Run, RunFailed
from bench.harness.forms import SourceTree, make_tree
from bench.harness.readers import Reader, Work, get_batches, with_free_pages
from bench.harness.stopwatch import processor_s, spent_since
from bench.jobs.pool_rivals import Fleet
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.job import Job
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_client import NodeClient, job_socket_path
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.secret import JobSecret, find_secret
from dieselfs.dataset import Dataset, connect
from dieselfs.limits import LIBRARY_MEMORY_BYTES
from dieselfs.process.state_dirs import runtime_folder
from dieselfs.shuffle.assignment import LOCAL_GROUP_CHUNKS
from dieselfs.snapshot.reader import Snapshot
from lab.cluster import Cluster, running_cluster
from lab.namespace import wait_for
from lab.network import Host, Network
from lab.server import upload

DATASET = "pool"
LOAD_TIMEOUT_S = 60.0
JOIN_TIMEOUT_S = 90.0
SEED, GROUP_CHUNKS = 1, 4
FILL_FILES = 256
"""Files in a batch that fills a cache."""
STEP_FILES = 256
"""Files of one step and rank in a local assignment."""
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Stage:
    """The dataset, as a local tree and on a server, and the hosts that read it."""

    tree: SourceTree
    cluster: Cluster
    hosts: Sequence[Host]
    snapshot: Snapshot


@contextmanager
def running_stage(tree: SourceTree, nodes: int) -> Iterator[Stage]:
    """New files and hosts, until the end of the block. Raises Unsuitable."""
    with Network() as net, running_cluster(net, servers=1) as cluster:
        hosts = [net.host(f"node-{number}") for number in range(nodes)]
        make_tree(tree.folder, tree.files, tree.file_bytes)
        with hosts[0].inside(), Dataset(cluster.settings(hosts[0]), DATASET, must_exist=False) as dataset:
            upload(dataset, tree.folder)
            dataset.refresh()
            yield Stage(tree, cluster, hosts, dataset.snapshot)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The daemons of one job, one on each host of a stage."""

    stage: Stage
    name: str
    secret: JobSecret
    daemons: "Sequence[Popen[bytes]]"
    members: Sequence[Member]

    def connect(self, memory_bytes: int = LIBRARY_MEMORY_BYTES) -> Dataset:
        """Called in a process with a host's environment."""
        servers, key_file = self.stage.cluster.servers, str(self.stage.cluster.key_file)
        return connect(DATASET, server=servers, key_file=key_file, memory_bytes=memory_bytes, job=self.name)

    def load(self) -> Run:
        """Warm the whole job."""
        (storage,) = self.stage.cluster.storages
        processes = {"daemons": [each.pid for each in self.daemons], "server": [storage.server.process.pid]}
        credential, digest = JobCredential(self.secret), self.stage.snapshot.digest
        with self.stage.hosts[0].inside(), closing(PeerClient(credential, digest)) as peers:

            def is_warm(member: Member) -> bool:
                warmth = peers.warmth(member)
                return warmth.pinned_bytes >= warmth.wanted_bytes

            for member in self.members:
                peers.warmth(member)  # connects
            before_s, start_s = processor_s(processes), time.perf_counter()
            for member in self.members:
                peers.warmth(member, is_to_warm=True)
            for member in self.members:
                wait_for(partial(is_warm, member), f"{member.node} is warm", LOAD_TIMEOUT_S)
            return Run(time.perf_counter() - start_s, spent_since(before_s, processes))


@contextmanager
def running_job(stage: Stage, memory_bytes: int) -> Iterator[RunningJob]:
    """A job of all hosts with cold memories, until the end of the block."""
    cluster, hosts, name = stage.cluster, stage.hosts, f"bench-{next(_numbers)}"
    secret = find_secret(None, str(cluster.key_file), DATASET, name)
    daemons: list[Popen[bytes]] = []
    members: Sequence[Member] = ()
    with ExitStack() as stack:
        for rank, host in enumerate(hosts):
            command = [sys.executable, "-P", "-m", "dieselfs_client.cache_daemon", DATASET]
            command += ["--memory", str(memory_bytes), "--server", cluster.servers]
            command += ["--key-file", str(cluster.key_file), "--job", name, "--job-nodes", str(len(hosts))]
            command += ["--job-node", host.name, "--job-rank", str(rank), "--job-host", host.address]
            daemons.append(host.start(command))
            stack.callback(host.kill, daemons[-1])
        for rank, host in enumerate(hosts):
            known = partial(_members, stage, host, Job(name, rank, len(hosts), host.name), secret)
            wait_for(lambda: len(known()) == len(hosts), f"{host.name} knows all", JOIN_TIMEOUT_S)  # noqa: B023  # called here only
            members = known()
        yield RunningJob(stage, name, secret, daemons, members)


def _members(stage: Stage, host: Host, job: Job, secret: JobSecret) -> Sequence[Member]:
    """The members that the daemon of a host knows."""
    folder, digest = runtime_folder(host.environment()), stage.snapshot.digest
    path = job_socket_path(folder, DATASET, digest, job, secret.fingerprint())
    with closing(NodeClient(path, digest)) as node:
        known = node.members()
    return (known and known.members) or ()


# -- readers ---------------------------------------------------------------------------------------------


def on_host(host: Host, reader: Reader) -> Work:
    """The work of a reader there."""
    os.environ.update(host.environment())
    logging.disable(logging.WARNING)  # about killed nodes
    stack = ExitStack()  # the process ends there
    stack.enter_context(host.inside())
    work = reader()

    def work_there() -> int:
        with stack:
            return work()

    return work_there


def library_reads(
    job: RunningJob, memory_bytes: int, batch: int, is_again: bool, paths: Sequence[str]
) -> Work:
    """`batch` files a call (1: `get`). `is_again`: all files were read before, and the library has kept those that fit.
    Otherwise its memory is empty, and the machine has free pages for all of it.
    """
    dataset = _opened(job, memory_bytes)
    if batch == 1:
        work: Work = partial(_get_each, dataset.get, paths)
    else:
        work = partial(get_batches, dataset.get_many, batch, paths)
    if not is_again:
        return with_free_pages(min(memory_bytes, job.stage.tree.size_bytes), work)
    get_batches(dataset.get_many, FILL_FILES, paths)
    return work


def library_plan(job: RunningJob, batch: int, rank: int, world: int, is_local: bool = False) -> Work:
    """The share of one rank in an epoch in chunk-wise order, loaded ahead; computing the order is measured too.

    `is_local`: steps of STEP_FILES files for each rank, in one group, of which each node reads those that it owns.
    """
    dataset = _opened(job, LIBRARY_MEMORY_BYTES)
    nodes = [host.name for host in job.stage.hosts[:world]] if is_local else []

    def read() -> int:
        plan = dataset.plan(SEED, 0, LOCAL_GROUP_CHUNKS if is_local else GROUP_CHUNKS)
        paths = plan.share(rank, world, STEP_FILES * world if is_local else None, nodes=nodes).paths
        if batch > 1:
            return get_batches(dataset.get_many, batch, paths)
        get = dataset.get
        for path in dataset.ahead(paths):
            get(path)
        return len(paths)

    return read


def _opened(job: RunningJob, memory_bytes: int) -> Dataset:
    dataset = job.connect(memory_bytes)
    dataset.get(job.stage.tree.paths()[0])  # connects
    return dataset


def _get_each(get: Callable[[str], bytes | None], paths: Sequence[str]) -> int:
    for path in paths:
        if get(path) is None:
            raise RunFailed(f"there is no {path}")
    return len(paths)


def cache_reads(fleet: Fleet, batch: int, host: Host, paths: Sequence[str]) -> Work:
    """`batch` files a call (1: `get`)."""
    cache = fleet.open(host)
    cache.get_many(paths[:FILL_FILES])  # connects
    if batch == 1:
        return partial(_get_each, cache.get, paths)
    return partial(get_batches, cache.get_many, batch, paths)


def cache_fills(fleet: Fleet, folder: Path, is_refill: bool, host: Host, paths: Sequence[str]) -> Work:
    """Reads files of the local file system, and sets all, or with `is_refill` the missing ones."""
    cache = fleet.open(host)

    def fill() -> int:
        for first in range(0, len(paths), FILL_FILES):
            batch = paths[first : first + FILL_FILES]
            found = cache.get_many(batch) if is_refill else {}
            missing = {path: (folder / path).read_bytes() for path in batch if path not in found}
            if missing:
                cache.set_many(missing)
        return len(paths)

    return fill
