"""How the nodes of a job warm their memory together (policy oneshot), from the real code under a simulated clock.

What is real: the placement, the order of each node, its lanes and their rests, the choice of a server for a connection.
What is simulated: time, and links as a fluid. Of many chunks several go as one load.
"""

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from bench.job_simulation import chunk_ids, members_of
from bench.pool_simulation_links import STEPS_PER_LOAD, Links, Rates
from dieselfs.cache.placement import Placement
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.limits import CHUNK_TARGET_BYTES, GIB
from dieselfs.rpc.address import TcpAddress
from dieselfs.rpc.endpoints import Endpoints, StaticServers
from dieselfs_client.foreground import Foreground
from dieselfs_client.warming import Pace, Warming, rotated

LOADS_MAX = 100_000
"""Of all nodes together: beyond that, several chunks are one load."""
MEMORY_BYTES = 64 * GIB
"""Of each node, for chunks."""
MOMENTS = 20
"""Parts of the whole time for which it is told how much was sent in them."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """`first_s`, `all_s`: until the first and the last node was warm. `busiest_server` in relation to the mean;
    `fullest_moment`: the most that was sent in a twentieth of the time, in relation to the mean.
    """

    nodes: int
    servers: int
    chunks: int
    kept: int
    first_s: float
    all_s: float
    sent_bytes_per_s: float
    requests_per_s: float
    busiest_server: float
    fullest_moment: float


class _Memory:
    """A node's shelf: what is to be there, and what is."""

    def __init__(self, node: int, links: Links, endpoints: Endpoints, load_bytes: int, lanes: int) -> None:
        self._node = node
        self._links = links
        self._load_bytes = load_bytes
        # One connection for each lane, kept for as long as it lasts; `TcpAddress.port` is the number of the server.
        addresses = [endpoints.choose(()) for _ in range(lanes)]
        self._connections = [address.port for address in addresses if isinstance(address, TcpAddress)]
        self.kept: set[int] = set()

    def lacks(self, chunk: int) -> bool:
        return chunk not in self.kept

    def has_room(self, chunk: int) -> bool:
        return (len(self.kept) + 1) * self._load_bytes <= MEMORY_BYTES

    async def bring(self, chunk: int, lane: trio.CapacityLimiter) -> None:
        async with lane:
            server = self._connections.pop()
            await self._links.move(server, self._node, self._load_bytes)
            self._connections.append(server)
            self.kept.add(chunk)


Shares = list[npt.NDArray[np.int64]]
"""The chunks that each node has to fetch."""


@cache
def owners_of(nodes: int, chunks: int) -> npt.NDArray[np.int32]:
    """Whose each chunk is, when all nodes are there."""
    return Placement(members_of(nodes)).owners(chunk_ids(chunks))


def owned(nodes: int, chunks: int) -> Shares:
    """What each node owns."""
    return _by_owner(owners_of(nodes, chunks), nodes)


def inherited(nodes: int, chunks: int, lost: int) -> Shares:
    """What each node has to fetch when the first `lost` of them are gone, and all had what they own."""
    before = owners_of(nodes, chunks)
    moved = np.flatnonzero(before < lost)
    members = members_of(nodes)
    ids = chunk_ids(chunks).reshape(-1, CHUNK_ID_BYTES)[moved]
    return [moved[share] for share in _by_owner(Placement(members[lost:]).owners(ids), nodes - lost)]


def _by_owner(owners: npt.NDArray[np.int32], nodes: int) -> Shares:
    by_owner = np.argsort(owners, kind="stable")
    return np.split(by_owner, np.cumsum(np.bincount(owners, minlength=nodes))[:-1])


def warmed(shares: Shares, servers: int, rates: Rates, seed: int = 1) -> Warmed:
    """Run the simulation of a job, from when all nodes begin to fetch until all are warm."""
    simulation = _Simulation(shares, servers, rates, seed)
    return trio.run(simulation.run, clock=trio.testing.MockClock(autojump_threshold=0))


class _Simulation:
    def __init__(self, shares: Shares, servers: int, rates: Rates, seed: int) -> None:
        fitting = MEMORY_BYTES // CHUNK_TARGET_BYTES
        self._wanted = sum(min(len(share), fitting) for share in shares)
        self._chunks_per_load = -(-self._wanted // LOADS_MAX)
        self._load_bytes = self._chunks_per_load * CHUNK_TARGET_BYTES
        self._pace = Pace()
        self._links = Links(rates, len(shares), servers, self._pace.lanes, self._load_bytes)
        self._shares = shares
        self._random = random.Random(seed)
        self._servers = StaticServers([TcpAddress("server", number) for number in range(servers)])
        self._warm_s: list[float] = []

    async def run(self) -> Warmed:
        lanes = self._pace.lanes
        memories = [
            _Memory(node, self._links, self._endpoints(), self._load_bytes, lanes)
            for node in range(len(self._shares))
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._links.run)
            async with trio.open_nursery() as nodes:
                for node, memory in enumerate(memories):
                    nodes.start_soon(self._warm, node, memory)
            nursery.cancel_scope.cancel()
        return self._told()

    def _endpoints(self) -> Endpoints:
        return Endpoints(self._servers, self._random.randrange(1 << 30))

    async def _warm(self, node: int, memory: _Memory) -> None:
        order = rotated(self._shares[node][:: self._chunks_per_load], node, len(self._shares))
        warming = Warming(memory, lambda: order, lambda chunk: self._load_bytes, Foreground(), self._pace)
        warming.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(warming.run)
            while warming.is_under_way:
                await trio.sleep(self._links.step_s * STEPS_PER_LOAD)
            nursery.cancel_scope.cancel()
        self._warm_s.append(trio.current_time())

    def _told(self) -> Warmed:
        sent = np.array(self._links.sent_bytes)
        took_s = max(self._warm_s)
        moments = np.array([part.sum() / len(part) for part in np.array_split(sent.sum(axis=1), MOMENTS)])
        return Warmed(
            len(self._shares),
            sent.shape[1],
            sum(map(len, self._shares)),
            self._wanted,
            min(self._warm_s),
            took_s,
            float(sent.sum()) / took_s,
            self._wanted / took_s,
            float(sent.sum(axis=0).max() / sent.sum(axis=0).mean()),
            float(moments.max() / moments.mean()),
        )
