"""Simulated clients: programs that write, read and maintain a dataset with the real library."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from dieselfs.errors import AlreadyExists, Damaged, DieselfsError, NotFound
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import RemoteSnapshot
from dieselfs.settings.table import OFF, Settings
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.writer import DatasetWriter
from tests.simulation.clock import now_s
from tests.simulation.green import Thread, drive, enter, pause
from tests.simulation.holdings import Holdings, QuotaRecords
from tests.simulation.oracle import Content, Oracle
from tests.simulation.world import World

DATASET = "data"
CALL_S_MAX = 170.0
"""A call ends within the time for other servers (60 s), and one more try: connect, send, wait for the reply."""
JOB_S_MAX = 1800.0
"""The same for maintenance, which works as long as its server shows that it lives."""

T = TypeVar("T")


@dataclass(eq=False)
class Cluster:
    """What clients know: the servers, the key, and what must hold."""

    world: World
    oracle: Oracle
    servers: str
    folder: Path
    key_file: Path
    grace_s: int
    keeps_notes: bool = True
    """Whether metadata that is not in chunks is never lost."""
    has_close_clocks: bool = True
    """Whether the clocks of servers differ by less than leases and the grace time allow."""
    has_holders: bool = False
    """Whether there are tags or pins."""
    has_repacks: bool = False
    has_lost: bool = False
    """Whether all metadata was lost, once."""
    sync: Callable[[], None] = lambda: None
    """What is written to Redis so far is not forgotten."""
    scratch: Oracle = field(default_factory=Oracle)
    """Of the dataset that is dropped and made again."""
    elsewhere: Oracle = field(default_factory=Oracle)
    """Of the dataset to which others copy."""
    attached: Oracle = field(default_factory=Oracle)
    """Of the dataset whose bytes stay outside."""
    is_dropping: bool = False
    """A drop without a reply may have left a part of its dataset: it is repeated."""
    dropped_s: float = -1.0
    """When the last drop has ended."""
    holdings: Holdings = field(default_factory=Holdings)
    quota: QuotaRecords = field(default_factory=QuotaRecords)
    clients: dict[str, ServerClient] = field(default_factory=dict)

    def client(self, name: str) -> ServerClient:
        """The connections of a client's process."""
        if name not in self.clients:
            settings = Settings(
                self.folder, self.folder, server=self.servers, key_file=str(self.key_file), tls=OFF
            )
            self.clients[name] = ServerClient(settings)
        return self.clients[name]

    def is_graced(self, since_s: float) -> bool:
        """Whether a purge keeps what was live at this time."""
        return self.has_close_clocks and now_s() - since_s < self.grace_s / 2

    def bounded(self, what: str, call: Callable[[], T], limit_s: float = CALL_S_MAX) -> T:
        """What a call returns or raises; it must end in time, and raise nothing but our errors."""
        began_s = now_s()
        try:
            return call()
        except (DieselfsError, AssertionError):
            raise
        except Exception as error:
            self.world.violated(f"{what} raised {error!r}")
            raise
        finally:
            if now_s() - began_s > limit_s:
                self.world.violated(f"{what} took {now_s() - began_s:.0f} s")


@dataclass(frozen=True)
class Step:
    """What a client does once: `kind` with `arguments`, after a pause."""

    number: int
    actor: str
    kind: str
    pause_s: float
    arguments: tuple[Any, ...] = ()


def content_of(path: bytes, number: int, size: int) -> bytes:
    """The bytes that a step writes to a path: never the same twice."""
    head = b"%s #%d " % (path, number)
    return (head * (size // len(head) + 1))[: max(size, len(head))]


def write(cluster: Cluster, step: Step) -> None:
    try:
        write_files(cluster, step, DATASET, cluster.oracle)
    except NotFound as error:
        if cluster.has_lost:  # while it was under way
            raise
        cluster.world.violated(f"step {step.number}: a write to a dataset that is there: {error}")


def write_files(cluster: Cluster, step: Step, name: str, oracle: Oracle) -> None:
    """Put and delete files in one chunk, and wait until they are stored."""
    client, world = cluster.client(step.actor), cluster.world
    changes: dict[bytes, Content] = {
        path: None if size is None else content_of(path, step.number, size)
        for path, size in step.arguments[0]
    }
    dataset = cluster.bounded("dataset", partial(client.dataset, name))
    sender = ChunkSender(client, dataset)
    try:
        writer = DatasetWriter(sender)
        for path, content in changes.items():
            oracle.begin(path, content)
            if content is None:
                writer.delete(path)
            else:
                writer.put(path, content)
        cluster.bounded("flush", writer.flush, 2 * CALL_S_MAX)
        for path, content in changes.items():
            oracle.acknowledge(path, content)
        world.note(f"step {step.number}: stored {sorted(changes)}")
    finally:
        sender.close()


def read(cluster: Cluster, step: Step) -> None:
    """Read all files of the newest generation."""
    check_files(cluster, step.actor, f"step {step.number}")


def fetched(cluster: Cluster, actor: str, name: str = DATASET, tag: str = "") -> RemoteSnapshot:
    """A snapshot, whole."""
    client = cluster.client(actor)
    remote = cluster.bounded("snapshot", partial(client.snapshot, name, tag=tag), 700.0)
    assert remote.content is not None
    return remote


def opened(remote: RemoteSnapshot) -> Snapshot:
    snapshot = Snapshot(bytes(remote.content or b""), "snapshot")
    snapshot.verify()
    return snapshot


def check_files(cluster: Cluster, actor: str, what: str) -> None:
    world, oracle = cluster.world, cluster.oracle
    reading, began_s, found = oracle.read(), now_s(), None
    try:
        remote = fetched(cluster, actor)
        snapshot = opened(remote)
        if wrong := oracle.snapshot(remote.generation, remote.updated_ns, snapshot.digest):
            world.violated(wrong)
        found = files_of(cluster, actor, snapshot)
        world.note(f"{what}: read {len(found)} files of generation {remote.generation}")
    except NotFound as error:
        if cluster.is_graced(began_s):
            world.violated(f"{what}: {error}")
    except Damaged as error:
        check_damage(world, what, error)
    finally:
        for wrong in oracle.end(reading, found):
            world.violated(f"{what}: {wrong}")


def check_damage(world: World, what: str, error: Damaged) -> None:
    if not world.chances.keys() & {"wrong bytes", "short bytes", "lasting damage"} or world.is_calm:
        world.violated(f"{what}: {error}")


def files_of(cluster: Cluster, actor: str, snapshot: Snapshot) -> dict[bytes, bytes]:
    """All files of a snapshot. Those of a chunk are requested together."""
    source = ServerSource(cluster.client(actor), snapshot)
    extents = {
        snapshot.path(node): list(snapshot.extents(node))
        for node in snapshot.walk()
        if snapshot.stat(node).is_file
    }
    contents: dict[ExtentRef, bytes] = {}
    for chunk in sorted({extent.chunk for parts in extents.values() for extent in parts}):
        wanted = [extent for parts in extents.values() for extent in parts if extent.chunk == chunk]
        fetch = partial(source.fetch_extents, chunk, wanted)
        contents |= zip(wanted, map(bytes, cluster.bounded("ranges", fetch)), strict=True)
    return {path: b"".join(contents[extent] for extent in parts) for path, parts in extents.items()}


def purge(cluster: Cluster, step: Step) -> None:
    client = cluster.client(step.actor)
    report = cluster.bounded(
        "purge", lambda: client.purge(DATASET, cluster.grace_s, is_dry_run=False), JOB_S_MAX
    )
    cluster.world.note(f"step {step.number}: {report}")


BESIDE_S = 0.2


def rebuild(cluster: Cluster, step: Step) -> None:
    """Beside it, a chunk is put that it may find or not."""
    client = cluster.client(step.actor)
    after_s = BESIDE_S * cluster.world.delays.random()
    Thread(target=_write_beside, args=(cluster, step, after_s)).start()
    report = cluster.bounded("rebuild", lambda: client.rebuild(DATASET), JOB_S_MAX)
    cluster.world.note(f"step {step.number}: {report}")


def _write_beside(cluster: Cluster, step: Step, after_s: float) -> None:
    pause(after_s)
    actor = f"{step.actor} beside"
    path = b"c/" + step.actor.encode() + b"-%d" % step.number
    try:
        write(cluster, Step(step.number, actor, "write", 0.0, ([(path, 40)],)))
    except DieselfsError as error:
        cluster.world.note(f"step {step.number}: {actor}: {type(error).__name__}: {error}")


def fsck(cluster: Cluster, step: Step) -> None:
    client = cluster.client(step.actor)
    report = cluster.bounded(
        "fsck", lambda: client.fsck(DATASET, is_deep=True, is_repair=bool(step.number % 2)), JOB_S_MAX
    )
    cluster.world.note(f"step {step.number}: {report}")


Kind = Callable[[Cluster, Step], None]

KINDS: dict[str, Kind] = {
    "write": write,
    "read": read,
    "purge": purge,
    "rebuild": rebuild,
    "fsck": fsck,
}


async def act(
    cluster: Cluster, name: str, skew_s: float, steps: list[Step], kinds: Mapping[str, Kind]
) -> None:
    """A client's process: its steps, one after the other. Errors of the product are answers."""

    await in_process(cluster.world, name, skew_s, lambda: _paced(steps, cluster, kinds))


def _paced(steps: list[Step], cluster: Cluster, kinds: Mapping[str, Kind]) -> None:
    for step in steps:
        pause(step.pause_s)
        cluster.world.note(f"step {step.number}: {step.kind}")
        try:
            kinds[step.kind](cluster, step)
        except DieselfsError as error:
            cluster.world.note(f"step {step.number}: {type(error).__name__}: {error}")


async def in_process(world: World, name: str, skew_s: float, work: Callable[[], None]) -> None:
    """Run a program in a process of its own."""
    async with trio.open_nursery() as threads:
        process = world.start(name, threads, skew_s)
        enter(process)
        await drive(process, work)
        threads.cancel_scope.cancel()


def create(cluster: Cluster) -> None:
    """Make the dataset."""
    with suppress(AlreadyExists):
        cluster.client("setup").create_dataset(DATASET)
