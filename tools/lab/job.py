"""A job on a network: hosts that have one dataset mounted, and pool their memory.

    job = Job("training", cluster, "photos", [net.host(f"node-{number}") for number in range(4)])
    with job:
        job.mount()
        job.nodes[0].place  # where it has the dataset
        job.nodes[3].host.kill()
        job.mount(job.nodes[3])  # back again

What is stored in the dataset follows from the names of its files (`lab.reader.content_of`), so readers can verify it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from dieselfs.dataset import Dataset
from dieselfs.upload import TreeUpload, walk_source
from dieselfs_client.mount.mounting import unmount
from dieselfs_client.supervision.record import Supervision, supervision_of
from lab.cluster import Cluster
from lab.mounts import clear
from lab.namespace import wait_for
from lab.network import Host
from lab.reader import content_of

DLCMD = (sys.executable, "-m", "dieselfs_tools.dlcmd")
MOUNT_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Stored:
    """A dataset of files `0`, `1`, ... of equal length."""

    name: str
    files: int
    chunks: int
    chunk_bytes: int
    """Of all payloads together."""
    snapshot_bytes: int


def store(
    cluster: Cluster, host: Host, name: str, files: int, file_bytes: int, files_per_chunk: int
) -> Stored:
    """Store a dataset, from `host`."""
    folder = host.folder / f"tree-{name}"
    folder.mkdir()
    for number in range(files):
        (folder / f"{number}").write_bytes(content_of(f"{number}", file_bytes))
    with host.inside(), Dataset(cluster.settings(host), name, is_created=False) as data:
        upload = TreeUpload(data.client, data.create(), None, chunk_bytes=files_per_chunk * file_bytes)
        report = upload.run(lambda failed: walk_source(os.fsencode(folder), b"", failed))
        assert not report.failures
    with host.inside(), Dataset(cluster.settings(host), name) as data:
        snapshot = data.snapshot
        lengths = snapshot.column("chunk_payload_lengths")
        return Stored(name, files, snapshot.chunk_count, int(lengths.sum()), len(snapshot.content))


@dataclass(frozen=True)
class JobNode:
    """A host, and the mount of the job's dataset there."""

    host: Host
    rank: int
    place: Path

    @property
    def name(self) -> str:
        """As the job knows it."""
        return self.host.name

    def port(self) -> int:
        """At which the other nodes reach it."""
        daemon = self._supervision().daemon
        sockets = self.host.run(["ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes"])
        (own,) = (line.split() for line in sockets.splitlines() if f"pid={daemon}," in line)
        return int(own[3].rpartition(":")[2])

    def kill_mount(self) -> None:
        """Kill what serves the mount, and would replace it; other mounts of the host go on."""
        supervision = self._supervision()
        for process in (supervision.supervisor, supervision.daemon):
            os.kill(process, signal.SIGKILL)

    def stats(self) -> dict[str, Any]:
        """What the mount says of its part in the job; only of one that answers."""
        stats: dict[str, Any] = json.loads((self.place / ".dieselfs/stats").read_text())["job"]
        return stats

    def _supervision(self) -> Supervision:
        supervision = supervision_of(str(self.place))
        assert supervision is not None
        return supervision

    def loads(self) -> int:
        """Chunks, or pieces of them, that this node has had from the servers."""
        stats = self.stats()
        return int(stats["shelf"]["loads"] + stats["asked"]["from_servers"])


class Job:
    """Use it in a `with`; in the end nothing is mounted any more."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        dataset: str,
        hosts: Sequence[Host],
        servers: str = "",
        **options: str,
    ) -> None:
        """`servers`: if they are not the cluster's list; `options`: of each mount, as in the text of `-o`."""
        self.name = name
        self.nodes = [JobNode(host, rank, host.folder / name) for rank, host in enumerate(hosts)]
        self._dataset = dataset
        self._dlcmd: list[str | Path] = [
            *DLCMD,
            "--server",
            servers or cluster.servers,
            "--key-file",
            cluster.key_file,
        ]
        self._options = {
            "memory": "128MiB",
            **options,
            "job": name,
            "job_nodes": str(len(hosts)),
        }
        self._stack = ExitStack()

    def __enter__(self) -> "Job":
        for node in self.nodes:
            node.place.mkdir(exist_ok=True)
            self._stack.callback(clear, node.place)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def mount(self, *nodes: JobNode) -> None:
        """Mount at the same time, on all nodes or on these; returns when all of them can be used.

        A node that was killed is brought back by it.
        """
        begun = [(node, self._begin(node)) for node in nodes or self.nodes]
        for node, process in begun:
            assert process.wait(MOUNT_TIMEOUT_S) == 0, node.host.log()

    def _begin(self, node: JobNode) -> "subprocess.Popen[bytes]":
        clear(node.place)
        own = {
            "job_node": node.name,
            "job_rank": str(node.rank),
            "job_host": node.host.address,
            "log_file": str(node.host.folder / f"{self.name}.log"),
        }
        text = ",".join(f"{name}={value}" for name, value in {**self._options, **own}.items())
        return node.host.start([*self._dlcmd, "mount", self._dataset, node.place, "-o", text])

    def unmount(self) -> None:
        """Everywhere; returns when the nodes have left the job, and nothing runs on their hosts any more."""
        for node in self.nodes:
            unmount(str(node.place))
        for node in self.nodes:
            wait_for(partial(_is_empty, node.host), f"{node.name} is left by its processes")

    def wait_until_complete(self, *nodes: JobNode) -> None:
        """Until all of these (or all) know all of them (or all)."""
        there = nodes or tuple(self.nodes)
        names = sorted(node.name for node in there)
        for node in there:
            wait_for(partial(_knows, node, names), f"{node.name} knows {names}")


def _is_empty(host: Host) -> bool:
    return not host.processes()


def _knows(node: JobNode, names: list[str]) -> bool:
    return bool(sorted(node.stats()["members"]) == names)
