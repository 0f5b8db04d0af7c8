"""Two jobs on the same four hosts, one of which loses nodes: mounts and readers on a network of this machine.

This module starts and kills processes, and mounts.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from bench.figures import RunFailed
from bench.stopwatch import family_of
from dieselfs_client.supervision.record import supervision_of
from lab.cluster import Cluster, running_cluster
from lab.job import Job, JobNode, store
from lab.load import Readers, load
from lab.network import Network
from lab.reader import Moment

NODES = 4
FILES, FILE_BYTES, FILES_PER_CHUNK = 1536, 16_384, 8
MEMORY = "24MiB"
"""Of each node: as much as the dataset, most of it for what the node owns. So nearly every read asks another node."""
READERS_EACH = 2
FILES_PER_S = 20.0
"""Of each reader: below what can be, so that a node that is gone does not leave more of the processors to others."""


class ReadJob:
    """A job whose nodes are read all the time, but for those that are lost."""

    def __init__(self, job: Job, seed: int) -> None:
        self.nodes = job.nodes
        self._job = job
        self._seed = seed
        self._readers: dict[JobNode, Readers] = {}
        self._stacks: dict[JobNode, ExitStack] = {}
        self._lost: dict[JobNode, list[int]] = {}

    def begin(self, nodes: Sequence[JobNode]) -> None:
        """Read on these nodes; returns when all readers have begun."""
        for node in nodes:
            self._seed += 1
            stack = self._stacks[node] = ExitStack()
            self._readers[node] = stack.enter_context(load([node], READERS_EACH, self._seed, FILES_PER_S))

    def end(self) -> None:
        """Let the readers end; whatever was stopped is killed."""
        for stack in self._stacks.values():
            stack.close()
        self._stacks.clear()

    def lose(self, node: JobNode, how: signal.Signals) -> None:
        """Kill or stop all processes of the job on a node, its readers first."""
        supervision = supervision_of(str(node.place))
        if supervision is None:
            raise RunFailed(f"{node.name} is not mounted")
        self._readers[node].kill()
        self._lost[node] = family_of(supervision.supervisor)
        self._signal(node, how)

    def bring_back(self, node: JobNode) -> None:
        """Mount and read again on a node that was lost."""
        self._signal(node, signal.SIGKILL)
        del self._lost[node]
        self._stacks.pop(node).close()
        self._job.mount(node)
        self.begin([node])

    def moments(self, nodes: Sequence[JobNode], since_s: float) -> list[Moment]:
        """What the readers of these nodes have written down since then."""
        return [moment for node in nodes for moment in self._readers[node].moments([node], since_s)]

    def _signal(self, node: JobNode, how: signal.Signals) -> None:
        for process in self._lost[node]:
            with suppress(ProcessLookupError):
                os.kill(process, how)


@contextmanager
def two_jobs() -> Iterator[tuple[ReadJob, ReadJob]]:
    """Both are mounted on all hosts, complete and read. The first one is to lose nodes. Raises Unsuitable."""
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(stack.enter_context(Network())))
        jobs = tuple(stack.enter_context(_read_job(cluster, name, seed)) for seed, name in enumerate(_NAMES))
        yield jobs[0], jobs[1]


_NAMES = ("losing", "keeping")


@contextmanager
def _read_job(cluster: Cluster, name: str, seed: int) -> Iterator[ReadJob]:
    there = {host.name: host for host in cluster.net.hosts}
    names = [f"node-{number}" for number in range(NODES)]
    hosts = [there.get(each) or cluster.net.host(each) for each in names]
    stored = store(cluster, hosts[0], name, FILES, FILE_BYTES, FILES_PER_CHUNK)
    with Job(name, cluster, stored.name, hosts, memory=MEMORY) as job:
        job.mount()
        job.wait_until_complete()
        reading = ReadJob(job, seed * 1000)
        try:
            reading.begin(job.nodes)
            yield reading
        finally:
            reading.end()
