"""Jobs of up to 1,024 nodes and ten million chunks: the real code with a simulated clock and network.

Real: placement, sealed members, membership lists in a metadata store, the nodes' membership. Simulated: time, and the
network as a delay.
"""

import random
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from bench.harness.figures import Row, Scale
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.cluster.member import Member
from dieselfs.cluster.placement import Placement
from dieselfs.cluster.secret import JobSecret
from dieselfs.limits import GIB, SEAL_BYTES
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.members import JobId, MembershipList, encode_members
from dieselfs_client.cluster.membership import Membership, RemoteRegistry
from dieselfs_server.leases.lease import JobMembers, JoinRequest
from dieselfs_server.metadata.sqlite.store import SqliteMetadata

NODES = (16, 64, 256, 1024)
CHUNKS = (34_500, 1_000_000, 10_000_000)
DATASET = bytes(16)
TERMS = JobId("imagenet", "train", 1, bytes(32))
SECRET = JobSecret(bytes(32))
START_S = 10.0
"""In which all nodes of a job start."""
STEADY_S = 60.0
DELAY_S = 0.001
LIMIT_S = 3600.0
SAMPLE = 100_000


def job_simulation(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    sizes = [nodes for nodes in NODES if nodes <= scale.nodes]
    chunk_counts = CHUNKS[:1] if scale.is_quick else CHUNKS
    yield (balance(nodes, chunks) for nodes in sizes for chunks in chunk_counts)
    yield (row for nodes in sizes for row in agreements(nodes))


def members_of(nodes: int) -> list[Member]:
    addresses = [TcpAddress(f"10.0.{n >> 8}.{n & 255}", 7071) for n in range(nodes)]
    return [
        Member(f"node-{n:04d}", n, address, 16 * GIB, n.to_bytes(16, "big"))
        for n, address in enumerate(addresses)
    ]


def chunk_ids(chunks: int) -> npt.NDArray[np.uint8]:
    """IDs of one writer, 50 a second: uint8, concatenated."""
    ids = np.zeros((chunks, CHUNK_ID_BYTES), np.uint8)
    numbers = np.arange(chunks, dtype=">u4")
    ids[:, :4] = (numbers // 50 + 1_700_000_000).astype(">u4").view(np.uint8).reshape(-1, 4)
    ids[:, 12:] = numbers.view(np.uint8).reshape(-1, 4)
    return ids


def balance(nodes: int, chunks: int) -> Row:
    """Place all chunks, lose the fullest node, and place its chunks again; shares are divided by the mean."""
    ids = chunk_ids(chunks)
    placement = Placement(members_of(nodes))
    begun_s = time.process_time()
    owners = placement.owners(ids)
    placing_s = time.process_time() - begun_s
    shares = np.bincount(owners, minlength=nodes) / (chunks / nodes)
    lost, step = int(shares.argmax()), max(chunks // SAMPLE, 1)
    without = placement.without({placement.members[lost].node})
    numbers = np.delete(np.arange(nodes), lost)
    before, after = owners[::step], numbers[without.owners(ids[::step])]
    heirs = np.bincount(numbers[without.owners(ids[owners == lost])], minlength=nodes) * nodes / chunks
    return {
        "nodes": nodes,
        "chunks": chunks,
        "fullest": (shares.max(), "{:.3f}"),
        "emptiest": (shares.min(), "{:.3f}"),
        "moved by a loss": (owners == lost).sum(),
        "needlessly": ((before != after) & (before != lost)).sum(),
        "fullest then": ((shares + heirs)[numbers].max(), "{:.3f}"),
        "placed in": (placing_s, "{:.2f} s"),
    }


class Servers(RemoteRegistry):
    """All servers of a job: one metadata store; calls by second, and bytes of the replies."""

    def __init__(self, metadata: SqliteMetadata) -> None:
        self._metadata = metadata
        self.calls: Counter[int] = Counter()
        self.list_bytes = 0
        self.working_s = 0.0
        self._make_dataset()

    def _make_dataset(self) -> None:
        self._metadata.create_dataset(TERMS.dataset, DATASET)
        self._job_members = JobMembers(self._metadata, DATASET, TERMS.job, SECRET.fingerprint())

    def lose_everything(self) -> None:
        self._metadata.drop_dataset(DATASET)
        self._make_dataset()

    async def join(self, sealed: bytes, known_version: int) -> MembershipList:
        await trio.sleep(DELAY_S)
        node, now_ns = Member.of(sealed[SEAL_BYTES:]).node, int((1_800_000_000 + trio.current_time()) * 10**9)
        request = JoinRequest(sealed, node, TERMS.generation, TERMS.digest, known_version)
        begun_s = time.process_time()
        members = self._job_members.renew(request, now_ns) or self._job_members.admit(request, now_ns)
        self.working_s += time.process_time() - begun_s
        self.calls[int(trio.current_time())] += 1
        self.list_bytes += len(encode_members(members.members or ()))
        return members

    async def leave(self, sealed: bytes) -> None:
        """Simulated nodes are killed and do not leave."""


class JobSimulation:
    """A job from its start to the loss of the store; each step ends when all nodes agree."""

    def __init__(self, nodes: int, servers: Servers, seed: int) -> None:
        self._servers = servers
        self._random = random.Random(seed)
        self._members = members_of(nodes)
        self._running: dict[str, tuple[Membership, trio.CancelScope]] = {}

    async def run(self) -> list[Row]:
        everyone, dying = {member.node for member in self._members}, self._members[1]
        async with trio.open_nursery() as nursery:
            for member in self._members:
                nursery.start_soon(self._live, member, self._random.uniform(0, START_S))
            found = [await self._until("start", everyone), await self._until("steady")]
            self._running[dying.node][1].cancel()
            found.append(await self._until("a node dies", everyone - {dying.node}))
            nursery.start_soon(self._live, dying, 0.0)
            found.append(await self._until("it comes back", everyone))
            self._servers.lose_everything()
            changes = self._changes()
            found.append(await self._until("the store is lost"))
            assert self._changes() == changes, "no node may see a shorter list meanwhile"
            nursery.cancel_scope.cancel()
        return found

    async def _live(self, me: Member, begins_after_s: float) -> None:
        await trio.sleep(begins_after_s)
        membership = Membership(self._servers, SECRET, TERMS, me, uniform=self._random.random)
        with trio.CancelScope() as scope:
            self._running[me.node] = (membership, scope)
            await membership.run()
        del self._running[me.node]

    def _changes(self) -> int:
        return sum(
            membership.metrics.numbers()["membership.changes"] for membership, _ in self._running.values()
        )

    def _is_known(self, nodes: set[str]) -> bool:
        memberships = [membership for membership, _ in self._running.values()]
        return self._running.keys() == nodes and all(len(each.members) == len(nodes) for each in memberships)

    async def _until(self, what: str, nodes: set[str] | None = None) -> Row:
        """Wait until these nodes know each other (without nodes, for STEADY_S); the time, and calls meanwhile."""
        servers, begun_s = self._servers, trio.current_time()
        working_s, calls, list_bytes = servers.working_s, servers.calls.total(), servers.list_bytes
        while trio.current_time() < begun_s + STEADY_S if nodes is None else not self._is_known(nodes):
            assert trio.current_time() - begun_s < LIMIT_S, f"{what}: the nodes do not agree"
            await trio.sleep(0.1)
        took_s, made = trio.current_time() - begun_s, servers.calls.total() - calls
        seconds = range(int(begun_s), int(trio.current_time()) + 1)
        return {
            "nodes": len(self._members),
            "what": what,
            "until all know": (took_s, "{:.1f} s"),
            "calls per s": (made / max(took_s, 1.0), "{:.0f}"),
            "in the worst second": max(servers.calls[second] for second in seconds),
            "lists": ((servers.list_bytes - list_bytes) / 1e6, "{:.2f} MB"),
            "server's work per call": ((servers.working_s - working_s) / max(made, 1) * 1000, "{:.2f} ms"),
        }


def agreements(nodes: int, seed: int = 1) -> list[Row]:
    """Simulate one job."""
    with closing(SqliteMetadata(":memory:")) as metadata:
        simulation = JobSimulation(nodes, Servers(metadata), seed)
        return trio.run(simulation.run, clock=trio.testing.MockClock(autojump_threshold=0))
