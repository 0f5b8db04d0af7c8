"""A job on a network: hosts that mount one dataset and pool their memory.

The content of a file follows from its name (`lab.reader.content_of`), so readers can verify it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dieselfs.dataset import Dataset
from dieselfs_client.mount.points.mounting import unmount
from dieselfs_client.supervision.status import SupervisorStatus, supervision_of
from dieselfs_client.supervision.supervisor import STOP_TIMEOUT_S
from lab.cluster import Cluster
from lab.mount_processes import kill_all
from lab.namespace import wait_for
from lab.network import Host, clear
from lab.reader import content_of
from lab.server import upload

DLCMD = (sys.executable, "-m", "dieselfs_tools.dlcmd")
MOUNT_TIMEOUT_S = 90.0
UNMOUNT_TIMEOUT_S = 2 * STOP_TIMEOUT_S
"""A supervisor kills a daemon that has not stopped by half of it."""


@dataclass(frozen=True)
class Stored:
    """A dataset of files `0`, `1`, ... of equal length."""

    name: str
    files: int
    chunks: int
    chunk_bytes: int
    """Sum of all payloads."""


def store(
    cluster: Cluster, host: Host, name: str, files: int, file_bytes: int, files_per_chunk: int
) -> Stored:
    folder = host.folder / f"tree-{name}"
    folder.mkdir()
    for number in range(files):
        (folder / f"{number}").write_bytes(content_of(f"{number}", file_bytes))
    with host.inside(), Dataset(cluster.settings(host), name, must_exist=False) as data:
        upload(data, folder, files_per_chunk * file_bytes)
    with host.inside(), Dataset(cluster.settings(host), name) as data:
        snapshot = data.snapshot
        lengths = snapshot.column("chunk_payload_lengths")
        return Stored(name, files, snapshot.chunk_count, int(lengths.sum()))


@dataclass(frozen=True)
class JobNode:
    """A host with a mount of the job's dataset at `place`."""

    host: Host
    rank: int
    place: Path

    @property
    def name(self) -> str:
        return self.host.name

    def port(self) -> int:
        """Of its peer service."""
        daemon = self._supervision().daemon
        sockets = self.host.run(["ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes"])
        (own,) = (line.split() for line in sockets.splitlines() if f"pid={daemon}," in line)
        return int(own[3].rpartition(":")[2])

    def kill_mount(self) -> None:
        """Kill what serves its mount, nothing else on the host."""
        kill_all(self.place)

    def stats(self) -> dict[str, Any]:
        """`.dieselfs/stats`."""
        stats: dict[str, Any] = json.loads((self.place / ".dieselfs/stats").read_text())
        return stats

    def _supervision(self) -> SupervisorStatus:
        supervision = supervision_of(str(self.place))
        assert supervision is not None
        return supervision

    def loads(self) -> int:
        """Chunks, and extents of chunks, that this node fetched from the servers."""
        stats = self.stats()
        return int(stats["node_cache"]["fetched_chunks"] + stats["requested"]["from_servers"])


class Job:
    """A context manager: nothing is mounted at its end."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        dataset: str,
        hosts: Sequence[Host],
        servers: str = "",
        is_pooled: bool = True,
        **options: str,
    ) -> None:
        """`servers` overrides the cluster's list; `is_pooled`: the mounts pool their memory, else each is alone;
        `options` of each mount, as of `-o`.
        """
        self.name = name
        self.nodes = [JobNode(host, rank, host.folder / name) for rank, host in enumerate(hosts)]
        self._dataset = dataset
        self._dlcmd: list[str | Path] = [*DLCMD, "--server", servers or cluster.servers]
        self._dlcmd += ["--key-file", cluster.key_file]
        self._is_pooled = is_pooled
        self._options = {"memory": "128MiB", **options}
        if is_pooled:
            self._options |= {"job": name, "job_nodes": str(len(hosts))}
        self._stack = ExitStack()

    def __enter__(self) -> "Job":
        for node in self.nodes:
            node.place.mkdir(exist_ok=True)
            self._stack.callback(clear, node.place)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def mount(self, *nodes: JobNode) -> None:
        """Mount on all nodes or on these at the same time, also after a kill; returns when all mounts are ready."""
        begun = [(node, self._begin(node)) for node in nodes or self.nodes]
        for node, process in begun:
            assert process.wait(MOUNT_TIMEOUT_S) == 0, node.host.log()

    def _begin(self, node: JobNode) -> "subprocess.Popen[bytes]":
        clear(node.place)
        own = {"log_file": str(node.host.folder / f"{self.name}.log")}
        if self._is_pooled:
            own |= {"job_node": node.name, "job_rank": str(node.rank), "job_host": node.host.address}
        text = ",".join(f"{name}={value}" for name, value in {**self._options, **own}.items())
        return node.host.start([*self._dlcmd, "mount", self._dataset, node.place, "-o", text])

    def unmount(self) -> None:
        """On all nodes; returns when no process runs on their hosts."""
        for node in self.nodes:
            unmount(str(node.place))
        for node in self.nodes:
            wait_for(partial(_is_empty, node.host), f"{node.name} has no process", UNMOUNT_TIMEOUT_S)

    def wait_until_complete(self, *nodes: JobNode) -> None:
        """Until the membership list of each of these nodes (default: all) names exactly these nodes."""
        there = nodes or tuple(self.nodes)
        names = sorted(node.name for node in there)
        for node in there:
            wait_for(partial(_knows, node, names), f"{node.name} knows {names}")


def _is_empty(host: Host) -> bool:
    return not host.processes()


def _knows(node: JobNode, names: list[str]) -> bool:
    return bool(sorted(node.stats()["job"]["members"]) == names)
