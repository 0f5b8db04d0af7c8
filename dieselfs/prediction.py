"""How long the epochs of a training take, and what limits them, from a dataset, a job and five numbers. No I/O.

An epoch is limited by the slowest of what happens at the same time, as in a pipeline: reading on each node, fetching to
each node, sending by the servers, and sending between nodes. Section 5 of the DIESEL paper measures these one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dieselfs.errors import InvalidInput
from dieselfs.stalls import predicted_waiting_s

READING, FETCHING, SERVERS, PEERS, COMPUTING = "reading", "fetching", "servers", "peers", "computing"
"""What may limit an epoch: a node's own processors, what the servers send to a node, what they send to all, what nodes
send each other, and the training itself.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one reader takes: for each file, and for each byte."""

    file_s: float
    byte_s: float

    @classmethod
    def of(cls, small: tuple[float, int], large: tuple[float, int]) -> "Cost":
        """Through two measured points: seconds of a file, and its bytes. Neither cost is negative."""
        (small_s, small_bytes), (large_s, large_bytes) = small, large
        byte_s = max((large_s - small_s) / (large_bytes - small_bytes), 0.0)
        return cls(max(small_s - byte_s * small_bytes, 0.0), byte_s)

    def of_files(self, files: float, size_bytes: float) -> float:
        return files * self.file_s + size_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Speeds:
    """The five numbers: a first epoch and a later one of a mount under a plan, and whole chunks from the servers."""

    first: Cost
    later: Cost
    fetch_bytes_s: float
    """Of one node, with as many requests at a time as prefetch has."""


@dataclass(frozen=True, slots=True)
class Job:
    """`memory_bytes`: of each node. `is_pooled`: the nodes' memory is one cache. `readers`: processes that read on each
    node, of which as many run at a time as there are `processors`. Rates are bytes per second; `servers_bytes_s`: what
    all servers together send; `network_bytes_s`: what a node sends and receives. `computing_s`: of an epoch.
    """

    nodes: int
    memory_bytes: int
    servers_bytes_s: float
    network_bytes_s: float
    is_pooled: bool = False
    readers: int = 1
    processors: int = 1
    computing_s: float = 0.0

    def __post_init__(self) -> None:
        if (
            min(self.nodes, self.readers, self.processors) < 1
            or self.memory_bytes < 0
            or self.computing_s < 0
        ):
            raise InvalidInput("a job needs at least one node and one reader, and no negative memory or time")
        if min(self.servers_bytes_s, self.network_bytes_s) <= 0:
            raise InvalidInput("rates must be more than 0")


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


def resident_share(size_bytes: int, job: Job) -> float:
    """How much of what a node reads the job's memory has after the first epoch, 0 to 1."""
    memory_bytes = job.memory_bytes * (job.nodes if job.is_pooled else 1)
    return min(memory_bytes / size_bytes, 1.0) if size_bytes else 1.0


def first_epoch(files: int, size_bytes: int, job: Job, speeds: Speeds) -> Epoch:
    """Nothing is in memory. In a pool each chunk is fetched by one node, which sends the others what they read of it;
    without one, each node fetches the chunks of what it reads.

    More readers do not make it faster here: the daemon that verifies and pushes is one.
    """
    reading_s = speeds.first.of_files(files / job.nodes, size_bytes / job.nodes)
    return _epoch(reading_s, size_bytes, _sent_to_peers(size_bytes, job), job, speeds)


def later_epoch(files: int, size_bytes: int, job: Job, speeds: Speeds) -> Epoch:
    """The part that memory has is read there, or sent by the node that has it; the rest is fetched again."""
    resident = resident_share(size_bytes, job)
    at_a_time = min(job.readers, job.processors)
    files_of_node, bytes_of_node = files / job.nodes, size_bytes / job.nodes
    # What comes from a peer or from the servers is verified and pushed as in a first epoch.
    here = resident / job.nodes if job.is_pooled else resident
    reading_s = here * speeds.later.of_files(files_of_node, bytes_of_node) / at_a_time
    reading_s += (1 - here) * speeds.first.of_files(files_of_node, bytes_of_node)
    return _epoch(
        reading_s, (1 - resident) * size_bytes, _sent_to_peers(resident * size_bytes, job), job, speeds
    )


def _sent_to_peers(size_bytes: float, job: Job) -> float:
    return size_bytes * (job.nodes - 1) / job.nodes if job.is_pooled else 0.0


def _epoch(reading_s: float, fetched_bytes: float, sent_bytes: float, job: Job, speeds: Speeds) -> Epoch:
    parts_s = {
        READING: reading_s,
        FETCHING: fetched_bytes / job.nodes / speeds.fetch_bytes_s,
        SERVERS: fetched_bytes / job.servers_bytes_s,
        PEERS: sent_bytes / job.nodes / job.network_bytes_s,
        COMPUTING: job.computing_s,
    }
    return Epoch(parts_s, fetched_bytes, sent_bytes)
