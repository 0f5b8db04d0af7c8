"""The weights of a model, read by one node and by all nodes of a job, over the link of one server.

Each run has new mounts with empty memories, and the kernel's caches were dropped. One TCP stream over the same link is
the bound of one node. Nodes alone share the link of the server; those of a job need each chunk once from there. This
module starts processes, and mounts.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import can_drop_caches, drop_caches
from bench.harness.readers import Work, read_together
from bench.harness.stopwatch import Processes
from bench.rivals.stage import measured_link
from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.telemetry import catalogue
from lab.cluster import Cluster, running_cluster
from lab.job import Job, JobNode
from lab.network import Host, Network, Unsuitable
from lab.server import upload

NODES, QUICK_NODES = 4, 2
LINK_BYTES_PER_S = 125_000_000
TENSOR_BYTES = 16 * MIB
TENSORS, QUICK_TENSORS = 40, 2
READ_BYTES = 1 * MIB
DATASET = "weights"
LINK = "one TCP stream"

Way = Callable[[Path], int]
"""Reads a file; returns its bytes."""


def weights(folder: Path, scale: Scale) -> Generator[Trial]:
    """Raises Unsuitable."""
    if not can_drop_caches():
        raise Unsuitable("caches are dropped before each run, which needs root")
    nodes = QUICK_NODES if scale.is_quick else NODES
    made = make_weights(folder / "source", QUICK_TENSORS if scale.is_quick else TENSORS)
    sizes = {path.suffix: path.stat().st_size for path in made}
    with Network() as net, running_cluster(net, servers=1) as cluster:
        hosts = [net.host(f"node-{number}") for number in range(nodes)]
        with hosts[0].inside(), Dataset(cluster.settings(hosts[0]), DATASET, must_exist=False) as data:
            upload(data, folder / "source")
        net.rate(cluster.storages[0].host, LINK_BYTES_PER_S)
        stage = _Stage(cluster, hosts)
        for suffix, way in WAYS.items():
            size_bytes = sizes[suffix]
            link = Side(LINK, partial(stage.streamed, size_bytes), 1, "", size_bytes)
            sides = [link] if suffix == ".safetensors" else []
            for count in (1, nodes):
                whole = count * size_bytes
                for is_pooled in (False, True) if count > 1 else (False,):
                    name = (
                        "one node"
                        if count == 1
                        else f"{count} nodes, {'a job' if is_pooled else 'each alone'}"
                    )
                    run = partial(stage.loaded, count, is_pooled, f"model{suffix}", way)
                    sides.append(Side(name, run, count, "copies", whole))
            title = f"{NAMES[suffix]}, {size_bytes / MIB:,.0f} MiB, cold, {8 * LINK_BYTES_PER_S / 1e9:g} Gb/s"
            yield Trial(title, sides, scale.rounds, sides[0].name)


def make_weights(folder: Path, tensors: int) -> list[Path]:
    """Files of random numbers: as safetensors, and as plain bytes of the same length."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    source = np.random.default_rng(1)
    content = {f"layer.{number}": source.bytes(TENSOR_BYTES) for number in range(tensors)}
    save_file(
        {name: np.frombuffer(each, np.float32) for name, each in content.items()},
        folder / "model.safetensors",
    )
    (folder / "model.bin").write_bytes(b"".join(content.values()))
    return sorted(folder.iterdir())


def read_in_sequence(path: Path) -> int:
    """As `dd` does."""
    buffer, size_bytes = bytearray(READ_BYTES), 0
    with open(path, "rb", buffering=0) as file:
        while length := file.readinto(buffer):
            size_bytes += length
    return size_bytes


def load_tensors(path: Path) -> int:
    """Through the mapping of the safetensors library."""
    from safetensors import safe_open

    size_bytes = 0
    with safe_open(path, "np") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # it is no mapping
            size_bytes += tensors.get_tensor(name).nbytes
    return size_bytes


WAYS: dict[str, Way] = {".bin": read_in_sequence, ".safetensors": load_tensors}
NAMES = {".bin": "a plain file in sequence", ".safetensors": "safetensors, mapped"}


@dataclass(frozen=True, slots=True)
class _Stage:
    cluster: Cluster
    hosts: list[Host]

    def streamed(self, size_bytes: int) -> Run:
        """The time of this number of bytes at the rate of one stream."""
        _, bytes_per_s = measured_link(self.hosts[0], self.cluster.storages[0].host)
        return Run(size_bytes / bytes_per_s, seen={"MB/s": bytes_per_s / 1e6})

    def loaded(self, nodes: int, is_pooled: bool, name: str, way: Way) -> Run:
        """All nodes load the file at the same time."""
        sent_bytes = self._sent_bytes()
        with self._mounted(nodes, is_pooled) as mounted:
            drop_caches()
            readers = [partial(_reader, node.place / name, way) for node in mounted]
            run = read_together(readers, nodes, self._processes(mounted))
        return Run(run.duration_s, run.parts, {"MB from the server": (self._sent_bytes() - sent_bytes) / 1e6})

    def _processes(self, mounted: Sequence[JobNode]) -> Processes:
        return {
            "mounts": [process for node in mounted for process in node.host.processes()],
            "server": [self.cluster.storages[0].server.process.pid],
        }

    def _sent_bytes(self) -> int:
        with closing(self.cluster.storages[0].server.client()) as client:
            return int(client.status().metrics[catalogue.PAYLOADS_SENT_BYTES.name])

    @contextmanager
    def _mounted(self, nodes: int, is_pooled: bool) -> Iterator[Sequence[JobNode]]:
        hosts = self.hosts[:nodes]
        with Job("load", self.cluster, DATASET, hosts, is_pooled=is_pooled, memory="2GiB") as job:
            job.mount()
            if is_pooled:
                job.wait_until_complete()
            yield job.nodes
            job.unmount()


def _reader(path: Path, way: Way) -> Work:
    def read() -> int:
        assert way(path) > 0, path
        return 1

    return read
