"""Jobs of several nodes on a network of namespaces, timed and predicted. This module starts processes.

The nodes share the processors of one machine. So most cases have rates at which the network or the server is the limit,
and the predicted reading time is multiplied by the nodes that share a processor.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf

from bench.harness.figures import Run
from bench.harness.readers import Reader, Work, read_together
from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.snapshot.reader import Snapshot
from dieselfs_tools.observe.prediction import READING, Epoch, Speeds, first_epoch, later_epoch, predicted_job
from dieselfs_tools.observe.prediction import Job as PredictedJob
from dieselfs_tools.observe.timing import GROUP_CHUNKS, read_plan
from lab.cluster import Cluster, running_cluster
from lab.job import Job, JobNode, Stored, store
from lab.network import Host, Network

FILES, FILE_BYTES, FILES_PER_CHUNK = 1024, 64 << 10, 16
"""Many chunks for few bytes: owners have nearly the same number, as those of a large dataset."""
AMPLE_BYTES, SCARCE_BYTES = 256 * MIB, 48 * MIB
PAYLOAD_SHARE = 1448 / 1514
"""Of a packet of TCP over Ethernet. Rates of the network count all of it."""
BUSY_PROCESSORS = 2
"""Of one node that stores files: the server and the daemon work at the same time as the reader."""


@dataclass(frozen=True, slots=True)
class Case:
    """`node_bytes_s`: what each node sends and receives; `server_bytes_s`: the server. None: no limit."""

    nodes: int
    is_pooled: bool
    memory_bytes: int
    node_bytes_s: int | None = None
    server_bytes_s: int | None = None

    @property
    def title(self) -> str:
        limits = {"each node": self.node_bytes_s, "the server": self.server_bytes_s}
        rates = [f"{name} at {rate / 1e6:g} MB/s" for name, rate in limits.items() if rate is not None]
        return (
            f"{self.nodes} nodes, {'pooled' if self.is_pooled else 'each alone'}, {self.memory_bytes // MIB} MiB each, "
            f"{', '.join(rates) or 'no limit of rates'}"
        )


NODE_RATE, SERVER_RATE = 6_000_000, 12_000_000
QUICK_CASES = (Case(2, True, AMPLE_BYTES, node_bytes_s=NODE_RATE),)
CASES = (
    *(Case(nodes, pooled, AMPLE_BYTES, NODE_RATE) for nodes in (2, 4) for pooled in (False, True)),
    *(Case(nodes, pooled, AMPLE_BYTES, None, SERVER_RATE) for nodes in (2, 4) for pooled in (False, True)),
    *(Case(2, pooled, SCARCE_BYTES, NODE_RATE) for pooled in (False, True)),
    *(Case(2, pooled, AMPLE_BYTES) for pooled in (False, True)),
)


@contextmanager
def running_lab() -> Iterator["Lab"]:
    """A server with a dataset, until the end of the block. Raises Unsuitable."""
    with ExitStack() as stack:
        net = stack.enter_context(Network())
        cluster = stack.enter_context(running_cluster(net, servers=1))
        host = net.host("node-0")
        stored = store(cluster, host, "predicted", FILES, FILE_BYTES, FILES_PER_CHUNK)
        with (
            host.inside()
        ):  # not longer: what this process starts outside of the lab must not belong to the host
            data = stack.enter_context(Dataset(cluster.settings(host), stored.name))
            snapshot = data.snapshot
        yield Lab(cluster, stored, snapshot, [host])


_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Lab:
    cluster: Cluster
    stored: Stored
    snapshot: Snapshot
    hosts: list[Host]
    """Grows to the nodes of the largest case."""

    @property
    def size_bytes(self) -> int:
        return FILES * FILE_BYTES

    def round(self, cases: Sequence[Case], speeds: Speeds) -> Iterator[tuple[str, Epoch, Run]]:
        """A first and a later epoch of each case: its title, as predicted, as measured."""
        for case in cases:
            runs = self._run(case)
            job = self._predicted(case, speeds)
            for name, predict, run in zip(("first", "later"), (first_epoch, later_epoch), runs, strict=True):
                epoch = predict(FILES, self.size_bytes, job, speeds)
                yield f"{case.title}, {name} epoch", sharing(epoch, case.nodes, os.cpu_count() or 1), run

    def _predicted(self, case: Case, speeds: Speeds) -> PredictedJob:
        return predicted_job(
            self.snapshot,
            self.size_bytes,
            case.memory_bytes,
            nodes=case.nodes,
            is_pooled=case.is_pooled,
            servers_bytes_s=PAYLOAD_SHARE * case.server_bytes_s
            if case.server_bytes_s
            else speeds.fetch_bytes_s,
            network_bytes_s=PAYLOAD_SHARE * case.node_bytes_s if case.node_bytes_s else inf,
        )

    def _run(self, case: Case) -> list[Run]:
        net, (storage,) = self.cluster.net, self.cluster.storages
        while len(self.hosts) < case.nodes:
            self.hosts.append(net.host(f"node-{len(self.hosts)}"))
        hosts = self.hosts[: case.nodes]
        rates = {**dict.fromkeys(hosts, case.node_bytes_s), storage.host: case.server_bytes_s}
        options = {"memory": str(case.memory_bytes)}
        name = f"job-{next(_numbers)}"
        with ExitStack() as stack:
            # Not `job.unmount`: where another mount namespace of the machine has a copy of a mount, its daemon stays.
            for host in hosts:
                stack.callback(host.kill)
            job = Job(name, self.cluster, self.stored.name, hosts, is_pooled=case.is_pooled, **options)
            stack.enter_context(job).mount()
            if case.is_pooled:
                job.wait_until_complete()
            for host, rate in rates.items():
                if rate is not None:
                    net.rate(host, rate)
                    stack.callback(net.rate, host, None)
            return [self._epoch(job.nodes, epoch) for epoch in range(2)]

    def _epoch(self, nodes: Sequence[JobNode], epoch: int) -> Run:
        plan = f"seed=1,epoch={epoch},group={GROUP_CHUNKS},world={len(nodes)}"
        before = traffic(nodes)
        readers: list[Reader] = [partial(_reader, node, f"{plan},rank={node.rank}") for node in nodes]
        run, after = read_together(readers, FILES), traffic(nodes)
        return replace(run, seen={name: (after[name] - before[name]) / 1e6 for name in after})


def _reader(node: JobNode, plan: str) -> Work:
    return partial(read_plan, node.place, plan)


def traffic(nodes: Sequence[JobNode]) -> dict[str, float]:
    """Bytes of chunks that the mounts have received, all together."""
    stats = [node.stats() for node in nodes]
    return {
        f"{what[:-1]} MB": sum(each.get(what, {}).get("received_bytes", 0) for each in stats)
        for what in ("servers", "peers")
    }


def sharing(epoch: Epoch, nodes: int, processors: int) -> Epoch:
    """The prediction where all nodes and the server share the processors of one machine."""
    stores = epoch.from_servers_bytes or epoch.from_peers_bytes
    factor = max(nodes * (BUSY_PROCESSORS if stores else 1) / processors, 1.0)
    return replace(epoch, parts_s={**epoch.parts_s, READING: factor * epoch.parts_s[READING]})
