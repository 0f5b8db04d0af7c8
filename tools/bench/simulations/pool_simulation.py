"""Warming, reading and recovery of large jobs: the tables of docs/internals/scale.md, simulated on the real code."""

import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from bench.harness.figures import Row, Scale
from bench.simulations.job_simulation import chunk_ids, members_of
from bench.simulations.simulated_epoch import groups_together, traffic
from bench.simulations.simulated_recovery import Loss, Recovery, recovery
from dieselfs.arrays import Numbers
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.cluster.placement import Placement
from dieselfs.limits import CHUNK_TARGET_BYTES, GIB
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.endpoints import Endpoints, ServerDirectory
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.memory.warming import Pace, Warming, rotated

NODE_BYTES_PER_S = 1.25e9
SERVER_BYTES_PER_S = 2.5e9
STORE_BYTES_PER_S = 2e9
"""For each server."""

JOBS = (
    (16, 2, 34_500),
    (64, 4, 1_000_000),
    (256, 16, 1_000_000),
    (1024, 64, 1_000_000),
    (1024, 64, 10_000_000),
)
"""Nodes, servers, chunks."""
# A group has as many chunks as a span: a node fetches the groups of a span together.
LOSSES = (
    Loss(16, 1, 100, False, 30, 45),
    Loss(16, 1, 100, True, 30, 45),
    Loss(64, 1, 1_024, True, 30, 45),
    Loss(256, 1, 4_096, True, 30, 45),
    Loss(1024, 1, 16_384, False, 30, 45),
    Loss(1024, 1, 16_384, True, 30, 45),
    Loss(64, 16, 1_024, True, 20, 20),
    Loss(1024, 16, 16_384, True, 15, 15),
)
READINGS = tuple((nodes, file_bytes) for file_bytes in (110_000, 4_096) for nodes in (8, 64, 256, 1024))
"""Nodes, bytes of a file."""


def pool_simulation(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    yield _warming([job for job in JOBS if job[0] <= scale.nodes])
    yield (
        traffic(nodes, file_bytes, groups)
        for nodes, file_bytes in READINGS
        if nodes <= scale.nodes
        for groups in sorted({1, groups_together(nodes)})
    )
    recoveries = [(loss, recovery(loss)) for loss in LOSSES if loss.nodes <= scale.nodes]
    yield (_lost(*each) for each in recoveries)
    yield (_returned(*each) for each in recoveries if each[1].trusted_s)


def _warming(jobs: Sequence[tuple[int, int, int]]) -> Iterator[Row]:
    def row(what: str, shares: Shares, servers: int) -> Row:
        rates = Rates(NODE_BYTES_PER_S, SERVER_BYTES_PER_S, STORE_BYTES_PER_S * servers)
        return {"what": what, **warmed(shares, servers, rates)}

    for nodes, servers, chunks in jobs:
        yield row("from nothing", owned(nodes, chunks), servers)
    nodes, servers, chunks = jobs[-1]
    yield row("from nothing", owned(nodes, chunks), 8)
    for lost in (1, nodes // 64):
        if lost:
            yield row(f"{lost} lost", inherited(nodes, chunks, lost), servers)
    yield row("one comes back", owned(nodes, chunks)[:1], servers)


def _seconds(heads: Sequence[str], times_s: Sequence[float], quantiles: Sequence[float]) -> Row:
    """Quantiles of the times of all nodes."""
    found = np.quantile(times_s, quantiles)
    return {head: (time_s, "{:.1f} s") for head, time_s in zip(heads, found, strict=True)}


def _how(loss: Loss) -> str:
    return "cut off" if loss.is_silent else "killed"


def _lost(loss: Loss, found: Recovery) -> Row:
    steady = range(int(loss.end_s) // 2, int(min(loss.back_s, loss.end_s)))
    return {
        "nodes": loss.nodes,
        "lost": loss.lost,
        "how": _how(loss),
        **_seconds(("known: half", "all"), found.known_s, (0.5, 1)),
        **_seconds(("readers waited: half", "most"), found.stalled_s, (0.5, 1)),
        "server requests": found.server_requests.total(),
        "in the worst second": max(found.server_requests.values(), default=0),
        "fetched again a second": (np.mean([found.heir_loads[second] for second in steady]), "{:.0f}"),
        "pings in the worst second": max(found.pings.values(), default=0),
    }


def _returned(loss: Loss, found: Recovery) -> Row:
    loads = (str(found.own_loads[second]) for second in range(int(loss.back_s), int(loss.end_s)))
    return {
        "nodes": loss.nodes,
        "how": _how(loss),
        **_seconds(("asked again: first", "half", "all"), found.trusted_s, (0, 0.5, 1)),
        "chunks that it fetches, second after second": ", ".join(loads),
    }


# -- warming (policy oneshot) -----------------------------------------------------------------------------
# Real: the placement, the order of each node, its lanes and pauses, the choice of a server. Simulated: time, and links
# as a fluid. Several chunks are one load where there are more than LOADS_MAX.

STEPS_PER_LOAD = 16
"""On full links; so the end of a step delays a load by at most a sixteenth."""
LOADS_MAX = 100_000
"""Of all nodes together."""
MEMORY_BYTES = 64 * GIB
"""Of each node, for chunks."""
MOMENTS = 20
"""Equal parts of the time, in which sent bytes are counted."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second of the link of each node, of each server, and of the store behind all servers."""

    node: float
    server: float
    store: float


class Links:
    """Used from one trio thread. The spare rate of a link is not given to others: no link is faster than a real one."""

    def __init__(
        self, rates: Rates, servers: int, of_server: Numbers, of_node: Numbers, load_bytes: int
    ) -> None:
        """`of_server`, `of_node`: the ends of each lane, a permanent connection for one load at a time."""
        self._rates, self._counts = rates, (servers, int(of_node.max()) + 1)
        self._of_server, self._of_node = of_server, of_node
        self._load_bytes = load_bytes
        self._left_bytes = np.zeros(len(of_node))
        self._arrived = [trio.Event() for _ in of_node]
        nodes = self._counts[1]
        fair = min(rates.node * nodes, rates.server * servers, rates.store) / len(of_node)
        self.step_s = load_bytes / fair / STEPS_PER_LOAD
        self.sent_bytes: list[npt.NDArray[np.float64]] = []
        """Each of shape (servers,): by each server in one step."""

    async def move(self, lane: int) -> None:
        """Wait until a load has arrived. Cancelled only with the whole simulation."""
        self._left_bytes[lane], self._arrived[lane] = self._load_bytes, trio.Event()
        await self._arrived[lane].wait()

    async def run(self) -> None:
        while True:
            await trio.sleep(self.step_s)
            self._step()

    def _step(self) -> None:
        servers, nodes = self._counts
        lanes = np.flatnonzero(self._left_bytes > 0)
        of_server, of_node = self._of_server[lanes], self._of_node[lanes]
        rates = np.minimum(
            self._rates.server / np.bincount(of_server, minlength=servers)[of_server],
            self._rates.node / np.bincount(of_node, minlength=nodes)[of_node],
        )
        rates = np.minimum(rates, self._rates.store / max(len(lanes), 1))
        moved = np.minimum(rates * self.step_s, self._left_bytes[lanes])
        self._left_bytes[lanes] -= moved
        self.sent_bytes.append(np.bincount(of_server, moved, servers).astype(np.float64))
        for lane in lanes[self._left_bytes[lanes] <= 0].tolist():
            self._arrived[lane].set()


class _Memory:
    """The pinned chunks of a node."""

    def __init__(self, links: Links, lanes: Iterable[int], load_bytes: int) -> None:
        self._links, self._lanes, self._load_bytes = links, list(lanes), load_bytes
        self._pinned: set[int] = set()

    def lacks(self, chunk: int) -> bool:
        return chunk not in self._pinned

    def has_room(self, chunk: int) -> bool:
        return (len(self._pinned) + 1) * self._load_bytes <= MEMORY_BYTES

    async def bring(self, chunk: int, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            lane = self._lanes.pop()
            await self._links.move(lane)
            self._lanes.append(lane)
            self._pinned.add(chunk)


Shares = list[npt.NDArray[np.int64]]
"""The chunks that each node has to fetch."""


@cache
def owners_of(nodes: int, chunks: int) -> npt.NDArray[np.int32]:
    """Shape (chunks,): the rank of each chunk's owner in the complete job."""
    return Placement(members_of(nodes)).owners(chunk_ids(chunks))


def owned(nodes: int, chunks: int) -> Shares:
    return _by_owner(owners_of(nodes, chunks), nodes)


def inherited(nodes: int, chunks: int, lost: int) -> Shares:
    """The chunks that each node fetches after the loss of the first `lost` nodes of a warm job."""
    before = owners_of(nodes, chunks)
    moved = np.flatnonzero(before < lost)
    members = members_of(nodes)
    ids = chunk_ids(chunks).reshape(-1, CHUNK_ID_BYTES)[moved]
    return [moved[share] for share in _by_owner(Placement(members[lost:]).owners(ids), nodes - lost)]


def _by_owner(owners: npt.NDArray[np.int32], nodes: int) -> Shares:
    by_owner = np.argsort(owners, kind="stable")
    return np.split(by_owner, np.cumsum(np.bincount(owners, minlength=nodes))[:-1])


def warmed(shares: Shares, servers: int, rates: Rates, seed: int = 1) -> Row:
    """Simulate a job from the first fetch until all nodes are warm.

    `first warm`, `all warm`: until the first and the last node was; `busiest server`, `fullest moment`: the most bytes
    sent by a server and in one of the MOMENTS, divided by the mean.
    """
    fitting = MEMORY_BYTES // CHUNK_TARGET_BYTES
    wanted, pace, chance = sum(min(len(share), fitting) for share in shares), Pace(), random.Random(seed)
    chunks_per_load = -(-wanted // LOADS_MAX)
    load_bytes = chunks_per_load * CHUNK_TARGET_BYTES
    there = ServerDirectory([TcpAddress("server", number) for number in range(servers)])
    nodes = [Endpoints(there, each) for each in chance.sample(range(1 << 30), len(shares))]
    chosen = [node.choose(()) for node in nodes for _ in range(pace.workers)]
    of_server = np.array([address.port for address in chosen if isinstance(address, TcpAddress)])
    links = Links(rates, servers, of_server, np.repeat(np.arange(len(nodes)), pace.workers), load_bytes)
    warm_s: list[float] = []

    async def warm(node: int) -> None:
        memory = _Memory(links, range(node * pace.workers, (node + 1) * pace.workers), load_bytes)
        order = rotated(shares[node][::chunks_per_load], node, len(shares))
        warming = Warming(memory, lambda: order, lambda chunk: load_bytes, Foreground(), pace)
        warming.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(warming.run)
            while warming.is_under_way:
                await trio.sleep(links.step_s * STEPS_PER_LOAD)
            nursery.cancel_scope.cancel()
        warm_s.append(trio.current_time())

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(links.run)
            async with trio.open_nursery() as warming:
                for node in range(len(shares)):
                    warming.start_soon(warm, node)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    sent, took_s = np.array(links.sent_bytes), max(warm_s)
    moments = np.array([part.sum() / len(part) for part in np.array_split(sent.sum(axis=1), MOMENTS)])
    return {
        "nodes": len(shares),
        "servers": servers,
        "chunks": wanted,
        "first warm": (min(warm_s), "{:.1f} s"),
        "all warm": (took_s, "{:.1f} s"),
        "sent": (sent.sum() / took_s / 1e9, "{:.1f} GB/s"),
        "requests a second": (wanted / took_s, "{:,.0f}"),
        "busiest server": (sent.sum(axis=0).max() / sent.sum(axis=0).mean(), "{:.2f}"),
        "fullest moment": (moments.max() / moments.mean(), "{:.2f}"),
    }
