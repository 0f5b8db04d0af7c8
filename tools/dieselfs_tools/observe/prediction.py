"""How long the epochs of a training take, and what limits them, from a dataset, a job and seven numbers. This module
writes and reads the file in which `dlcmd bench` leaves the numbers.

An epoch is limited by the slowest of what happens at the same time, as in a pipeline: reading on each node, fetching to
each node, sending by the servers, and what a node receives. Section 5 of the DIESEL paper measures these one by one.

A node stores two kinds of chunks: those that it keeps are stored whole, with the files that other nodes read in this
epoch. Of the others it stores the files that it reads itself.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from dieselfs.errors import InvalidInput, NotFound, os_errors_as
from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs.process.state_dirs import log_path
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry.stalls import predicted_waiting_s
from dieselfs_client.memory.budget import allot_for, kept_in_node_cache
from dieselfs_tools.cli.output import replace_file

READING, FETCHING, SERVERS, NETWORK, COMPUTING = "reading", "fetching", "servers", "network", "computing"
"""What may limit an epoch: a node's own processors, what the servers send to a node, what they send to all, what a node
receives from the servers and from other nodes, and the training itself.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """An epoch of one reader that was measured."""

    seconds: float
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one reader takes: to begin an epoch, for each file, and for each byte."""

    start_s: float
    file_s: float
    byte_s: float

    @classmethod
    def of(cls, few: Point, small: Point, large: Point) -> "Cost":
        """Through three epochs: few files, more files of that size, and large files. No cost is negative.

        The beginning of an epoch takes as long as hundreds of files. Without its own number it would count as a cost of
        files in one epoch and of bytes in the other.
        """
        file_bytes, large_bytes = small.size_bytes / small.files, large.size_bytes / large.files
        small_s = max((small.seconds - few.seconds) / (small.files - few.files), 0.0)
        start_s = max(few.seconds - few.files * small_s, 0.0)
        large_s = max((large.seconds - start_s) / large.files, 0.0)
        byte_s = max((large_s - small_s) / (large_bytes - file_bytes), 0.0)
        return cls(start_s, max(small_s - byte_s * file_bytes, 0.0), byte_s)

    def of_files(self, files: float, size_bytes: float) -> float:
        """Without the beginning of the epoch."""
        return files * self.file_s + size_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Speeds:
    """The seven numbers: a first epoch and a later one of a mount under a plan, and whole chunks from the servers."""

    first: Cost
    later: Cost
    fetch_bytes_s: float
    """What one node fetches, with as many requests at a time as prefetch has."""


@dataclass(frozen=True, slots=True)
class Job:
    """`kept_bytes`: of the dataset, which each node keeps in its page cache. `is_pooled`: the nodes' memory is one
    cache; `pooled_bytes`: which each node keeps there for all. `readers`: reading processes on each node; at most
    `processors` of them run at the same time. Rates are bytes per second; `servers_bytes_s`: what all servers together
    send; `network_bytes_s`: what a node receives. `computing_s`: of an epoch.
    """

    nodes: int
    kept_bytes: int
    servers_bytes_s: float
    network_bytes_s: float
    is_pooled: bool = False
    pooled_bytes: int = 0
    readers: int = 1
    processors: int = 1
    computing_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.nodes, self.readers, self.processors) < 1:
            raise InvalidInput("a job needs at least one node, one reader and one processor")
        if min(self.kept_bytes, self.pooled_bytes, self.computing_s) < 0:
            raise InvalidInput("memory and time cannot be negative")
        if min(self.servers_bytes_s, self.network_bytes_s) <= 0:
            raise InvalidInput("rates must be more than 0")

    def kept_share(self, size_bytes: int) -> float:
        """How much of the dataset each node has in its page cache after the first epoch, 0 to 1."""
        return min(self.kept_bytes / size_bytes, 1.0) if size_bytes else 1.0

    def resident_share(self, size_bytes: int) -> float:
        """How much of the dataset is in some memory after the first epoch, so that no server sends it again, 0 to 1.

        The chunks that came first are those that each node keeps, and those that the pool keeps.
        """
        pooled_bytes = self.nodes * self.pooled_bytes if self.is_pooled else 0
        return max(self.kept_share(size_bytes), min(pooled_bytes / size_bytes, 1.0) if size_bytes else 1.0)


@dataclass(frozen=True, slots=True)
class Epoch:
    """`parts_s`: the time that each part alone needs. Bytes are those of all nodes together."""

    parts_s: Mapping[str, float]
    from_servers_bytes: float
    from_peers_bytes: float

    @property
    def limit(self) -> str:
        return max(self.parts_s, key=lambda name: self.parts_s[name])

    @property
    def waiting_s(self) -> float:
        """How long the training waits for data."""
        reading_s = max(time_s for name, time_s in self.parts_s.items() if name != COMPUTING)
        return predicted_waiting_s(reading_s, self.parts_s[COMPUTING])

    @property
    def seconds(self) -> float:
        return self.parts_s[COMPUTING] + self.waiting_s


def first_epoch(files: int, size_bytes: int, job: Job, speeds: Speeds) -> Epoch:
    """Nothing is in memory. Each node fetches the chunks that it keeps, and its files of the others: from the servers,
    or in a pool from the node that has fetched the chunk, once for all.

    More readers do not make it faster here: the daemon that verifies and pushes is one.
    """
    own = 1 / job.nodes
    kept = job.kept_share(size_bytes)
    stored = kept + (1 - kept) * own
    reading_s = speeds.first.start_s + speeds.first.of_files(own * files, own * size_bytes)
    # The files of other nodes are fetched, verified and pushed here as well, but not read.
    others = stored - own
    reading_s += max(
        speeds.first.of_files(others * files, others * size_bytes)
        - speeds.later.of_files(others * files, others * size_bytes),
        0.0,
    )
    received_bytes = job.nodes * stored * size_bytes
    return _epoch(reading_s, size_bytes if job.is_pooled else received_bytes, received_bytes, job, speeds)


def later_epoch(files: int, size_bytes: int, job: Job, speeds: Speeds) -> Epoch:
    """What a node keeps is read there. The rest comes from the node that has it, or is fetched again."""
    own, kept = 1 / job.nodes, job.kept_share(size_bytes)
    at_a_time = min(job.readers, job.processors)
    files_of_node, bytes_of_node = own * files, own * size_bytes
    reading_s = speeds.later.start_s + kept * speeds.later.of_files(files_of_node, bytes_of_node) / at_a_time
    # What comes from a peer or from the servers is verified and pushed as in a first epoch.
    reading_s += (1 - kept) * speeds.first.of_files(files_of_node, bytes_of_node)
    fetched_bytes = (1 - job.resident_share(size_bytes)) * size_bytes
    return _epoch(reading_s, fetched_bytes, (1 - kept) * size_bytes, job, speeds)


def _epoch(reading_s: float, fetched_bytes: float, stored_bytes: float, job: Job, speeds: Speeds) -> Epoch:
    """Bytes of all nodes together: `fetched_bytes` from the servers, `stored_bytes` in their page caches. In a pool of
    n nodes, each owns one in n chunks that it stores, and its peers send the others.
    """
    sent_bytes = stored_bytes * (job.nodes - 1) / job.nodes if job.is_pooled else 0.0
    parts_s = {
        READING: reading_s,
        FETCHING: fetched_bytes / job.nodes / speeds.fetch_bytes_s,
        SERVERS: fetched_bytes / job.servers_bytes_s,
        NETWORK: (fetched_bytes + sent_bytes) / job.nodes / job.network_bytes_s,
        COMPUTING: job.computing_s,
    }
    return Epoch(parts_s, fetched_bytes, sent_bytes)


def predicted_job(
    snapshot: Snapshot, size_bytes: int, memory_bytes: int, nodes: int, is_pooled: bool, **more: Any
) -> Job:
    """A job whose nodes mount `snapshot`, with `memory_bytes` each. `size_bytes`: of the files that an epoch reads;
    `more`: the other fields of the job.

    Raises InvalidInput if a mount cannot have so little memory.
    """
    allotment = allot_for(snapshot, memory_bytes, nodes if is_pooled else 0)
    kept = allotment.pinned / max(ExtentTable(snapshot).total_page_bytes, 1)
    return Job(
        nodes=nodes,
        kept_bytes=round(kept * size_bytes),
        is_pooled=is_pooled,
        pooled_bytes=kept_in_node_cache(allotment.node_cache, nodes),
        **more,
    )


_FORMAT = 2
_FILE_BYTES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """`source`: where the chunks came from. `measured_s`: seconds since 1970."""

    speeds: Speeds
    source: str
    measured_s: int

    def fields(self) -> dict[str, object]:
        return {**asdict(self), "format": _FORMAT}


def default_path() -> Path:
    return log_path("speeds").with_suffix(".json")


def make_folder(path: Path) -> None:
    """The folder of the file at `path`, if there is none. Raises InvalidInput."""
    with os_errors_as(InvalidInput, path.parent, "; --save names another file"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def save(speeds: Speeds, source: str, path: Path) -> Measured:
    """Raises InvalidInput if the file cannot be written."""
    measured = Measured(speeds, source, int(time.time()))
    make_folder(path)
    replace_file(path, json.dumps(measured.fields(), indent=2) + "\n")
    return measured


def load(path: Path) -> Measured:
    """Raises NotFound if there is none, InvalidInput if it is not such a file."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_FILE_BYTES_MAX))
        if found["format"] != _FORMAT:
            raise InvalidInput(f"{path} has format {found['format']}, not {_FORMAT}: run 'dlcmd bench' again")
        speeds = found["speeds"]
        parts = ("start_s", "file_s", "byte_s")
        costs = [Cost(*(float(speeds[name][part]) for part in parts)) for name in ("first", "later")]
        read = Speeds(costs[0], costs[1], float(speeds["fetch_bytes_s"]))
        if min(min(astuple(cost)) for cost in costs) < 0 or read.fetch_bytes_s <= 0:
            raise ValueError("not a speed")
        return Measured(read, str(found["source"]), int(found["measured_s"]))
    except FileNotFoundError:
        raise NotFound(
            f"{path} does not exist: run 'dlcmd bench' first, on a machine like those of the job"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no result of 'dlcmd bench' ({error}): run it again") from None
