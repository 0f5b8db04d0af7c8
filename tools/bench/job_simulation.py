"""Jobs of up to a thousand nodes and ten million chunks, on the real code with a simulated clock and network.

    python -m bench.job_simulation [NODES ...]

What is real: placement, members and their seals, the rolls in a metadata store, what a node does with what it is told.
What is simulated: time, and the network between nodes and servers, as a delay.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from dieselfs.cache.member import Member, Terms
from dieselfs.cache.placement import Placement
from dieselfs.cache.roll import Roll, encode_members
from dieselfs.cache.secret import SEAL_BYTES, JobSecret
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.limits import GIB
from dieselfs.rpc.address import TcpAddress
from dieselfs_client.job.membership import Membership
from dieselfs_server.job_roll import Application, JobRoll
from dieselfs_server.metadata.sqlite import SqliteMetadata

DATASET = bytes(16)
TERMS = Terms("imagenet", "train", 1, bytes(32))
SECRET = JobSecret(bytes(32))
START_S = 10.0
"""The nodes of a job begin within this time, as a launcher starts them."""
STEADY_S = 60.0
DELAY_S = 0.001
LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Balance:
    """How chunks spread over nodes: the fullest and the emptiest in relation to the mean; what a lost node moves."""

    nodes: int
    chunks: int
    fullest: float
    emptiest: float
    moved: int
    moved_needlessly: int
    fullest_heir: float
    placing_s: float


def members_of(nodes: int) -> list[Member]:
    return [
        Member(
            f"node-{n:04d}", n, TcpAddress(f"10.0.{n >> 8}.{n & 255}", 7071), 16 * GIB, n.to_bytes(16, "big")
        )
        for n in range(nodes)
    ]


def chunk_ids(chunks: int) -> npt.NDArray[np.uint8]:
    """IDs as one writer makes them, 50 a second."""
    ids = np.zeros((chunks, CHUNK_ID_BYTES), np.uint8)
    numbers = np.arange(chunks, dtype=">u4")
    ids[:, :4] = (numbers // 50 + 1_700_000_000).astype(">u4").view(np.uint8).reshape(-1, 4)
    ids[:, 12:] = numbers.view(np.uint8).reshape(-1, 4)
    return ids


def balance(nodes: int, chunks: int) -> Balance:
    """Place all chunks; then lose a node, and place what it owned anew."""
    ids = chunk_ids(chunks)
    placement = Placement(members_of(nodes))
    begun_s = time.process_time()
    owners = placement.owners(ids)
    placing_s = time.process_time() - begun_s
    shares = np.bincount(owners, minlength=nodes) / (chunks / nodes)
    lost = int(shares.argmax())
    sample = ids[:: max(chunks // 100_000, 1)]
    without = placement.without({placement.members[lost].node})
    numbers = np.delete(np.arange(nodes), lost)
    before, after = owners[:: max(chunks // 100_000, 1)], numbers[without.owners(sample)]
    heirs = np.bincount(numbers[without.owners(ids[owners == lost])], minlength=nodes) * nodes / chunks
    return Balance(
        nodes,
        chunks,
        float(shares.max()),
        float(shares.min()),
        int((owners == lost).sum()),
        int(((before != after) & (before != lost)).sum()),
        float((shares + heirs)[numbers].max()),
        placing_s,
    )


@dataclass(eq=False)
class Servers:
    """All servers of a job: one metadata store, and what it was asked, by second."""

    metadata: SqliteMetadata
    calls: Counter[int] = field(default_factory=Counter)
    told_bytes: Counter[int] = field(default_factory=Counter)
    working_s: float = 0.0

    def __post_init__(self) -> None:
        self.make_dataset()

    def make_dataset(self) -> None:
        self.metadata.create_dataset(TERMS.dataset, DATASET)
        self.roll = JobRoll(self.metadata, DATASET, TERMS.job, SECRET.fingerprint())

    def lose_everything(self) -> None:
        self.metadata.drop_dataset(DATASET)
        self.make_dataset()

    async def join(self, sealed: bytes, known_version: int) -> Roll:
        await trio.sleep(DELAY_S)
        node = Member.of(sealed[SEAL_BYTES:]).node
        application = Application(sealed, node, TERMS.generation, TERMS.digest, known_version)
        begun_s = time.process_time()
        told = self.roll.renew(application, self._now_ns()) or self.roll.admit(application, self._now_ns())
        self.working_s += time.process_time() - begun_s
        second = int(trio.current_time())
        self.calls[second] += 1
        self.told_bytes[second] += len(encode_members(told.members or ()))
        return told

    async def leave(self, sealed: bytes) -> None:
        """Nodes of a simulation die; none says that it leaves."""

    def _now_ns(self) -> int:
        return int((1_800_000_000 + trio.current_time()) * 10**9)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How long until every node knew what had happened, and what the servers were asked meanwhile."""

    what: str
    took_s: float
    calls_per_s: float
    calls_per_s_max: int
    told_mb: float
    server_ms_per_call: float


class JobSimulation:
    """A job from its start to a loss of everything; each step ends when all nodes agree."""

    def __init__(self, nodes: int, servers: Servers, seed: int) -> None:
        self._servers = servers
        self._random = random.Random(seed)
        self._members = members_of(nodes)
        self._running: dict[str, tuple[Membership, trio.CancelScope]] = {}

    async def run(self) -> list[Agreement]:
        agreements = []
        async with trio.open_nursery() as nursery:
            for member in self._members:
                nursery.start_soon(self._live, member, self._random.uniform(0, START_S))
            everyone = {member.node for member in self._members}
            agreements.append(await self._until_known("start", everyone))
            agreements.append(await self._steady("steady"))
            self._running["node-0001"][1].cancel()
            agreements.append(await self._until_known("a node dies", everyone - {"node-0001"}))
            nursery.start_soon(self._live, self._members[1], 0.0)
            agreements.append(await self._until_known("it comes back", everyone))
            self._servers.lose_everything()
            changes = self._changes()
            agreements.append(await self._steady("the store is lost"))
            assert self._changes() == changes, "nobody may see a shorter list meanwhile"
            nursery.cancel_scope.cancel()
        return agreements

    async def _live(self, me: Member, begins_after_s: float) -> None:
        await trio.sleep(begins_after_s)
        membership = Membership(self._servers, SECRET, TERMS, me, uniform=self._random.random)
        with trio.CancelScope() as scope:
            self._running[me.node] = (membership, scope)
            await membership.run()
        del self._running[me.node]

    def _changes(self) -> int:
        return sum(membership.statistics().changes for membership, _ in self._running.values())

    async def _until_known(self, what: str, nodes: set[str]) -> Agreement:
        def is_known() -> bool:
            return self._running.keys() == nodes and all(
                len(membership.members) == len(nodes) for membership, _ in self._running.values()
            )

        return await self._watched(what, is_known)

    async def _steady(self, what: str) -> Agreement:
        end_s = trio.current_time() + STEADY_S
        return await self._watched(what, lambda: trio.current_time() >= end_s)

    async def _watched(self, what: str, is_over: Callable[[], bool]) -> Agreement:
        servers, begun_s = self._servers, trio.current_time()
        working_s, calls, told_bytes = servers.working_s, servers.calls.total(), servers.told_bytes.total()
        while not is_over():
            assert trio.current_time() - begun_s < LIMIT_S, f"{what}: the nodes do not agree"
            await trio.sleep(0.1)
        took_s, made = trio.current_time() - begun_s, servers.calls.total() - calls
        seconds = range(int(begun_s), int(trio.current_time()) + 1)
        return Agreement(
            what,
            took_s,
            made / max(took_s, 1.0),
            max(servers.calls[second] for second in seconds),
            (servers.told_bytes.total() - told_bytes) / 1e6,
            (servers.working_s - working_s) / max(made, 1) * 1000,
        )


def agreements(nodes: int, seed: int = 1) -> list[Agreement]:
    """Run the simulation of one job."""
    with closing(SqliteMetadata.in_memory()) as metadata:
        simulation = JobSimulation(nodes, Servers(metadata), seed)
        return trio.run(simulation.run, clock=trio.testing.MockClock(autojump_threshold=0))


def lines(sizes: Sequence[int]) -> Iterator[str]:
    yield "| nodes | chunks | fullest | emptiest | moved by a loss | needlessly | fullest then | placed in |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for nodes in sizes:
        for chunks in (34_500, 1_000_000, 10_000_000):
            b = balance(nodes, chunks)
            yield (
                f"| {nodes:,} | {chunks:,} | {b.fullest:.3f} | {b.emptiest:.3f} | {b.moved:,} | {b.moved_needlessly} "
                f"| {b.fullest_heir:.3f} | {b.placing_s:.2f} s |"
            )
    yield ""
    yield "| nodes | what | until all know | calls per s | in the worst second | told | server's work per call |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for nodes in sizes:
        for a in agreements(nodes):
            yield (
                f"| {nodes:,} | {a.what} | {a.took_s:.1f} s | {a.calls_per_s:.0f} | {a.calls_per_s_max} "
                f"| {a.told_mb:.2f} MB | {a.server_ms_per_call:.2f} ms |"
            )


if __name__ == "__main__":
    for line in lines([int(nodes) for nodes in sys.argv[1:]] or [16, 64, 256, 1024]):
        print(line, flush=True)
