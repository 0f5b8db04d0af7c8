"""How the nodes of a job warm their memory (policy oneshot): the real code under a simulated clock.

Real: the placement, the order of each node, its lanes and pauses, the choice of a server. Simulated: time, and links as
a fluid. Several chunks are one load where there are more than LOADS_MAX.
"""

import random
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from bench.job_simulation import chunk_ids, members_of
from dieselfs.address import TcpAddress
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.cluster.placement import Placement
from dieselfs.limits import CHUNK_TARGET_BYTES, GIB
from dieselfs.rpc.endpoints import Endpoints, ServerDirectory
from dieselfs_client.memory.foreground import Foreground
from dieselfs_client.memory.warming import Pace, Warming, rotated

STEPS_PER_LOAD = 16
"""On full links; so the end of a step delays a load by at most a sixteenth."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second of the link of each node, of each server, and of the store behind all servers."""

    node: float
    server: float
    store: float


class Links:
    """Used from one trio thread. The spare rate of a link is not given to others: no link is faster than a real one."""

    def __init__(self, rates: Rates, nodes: int, servers: int, lanes: int, load_bytes: int) -> None:
        """`lanes`: loads of one node in flight."""
        self._rates = rates
        self._left_bytes = np.zeros(nodes * lanes)
        self._servers = np.zeros(nodes * lanes, np.int64)
        self._nodes = np.zeros(nodes * lanes, np.int64)
        self._arrived = [trio.Event() for _ in range(nodes * lanes)]
        self._free = list(range(nodes * lanes))
        fair = min(rates.node, rates.server * servers / nodes, rates.store / nodes) / lanes
        self.step_s = load_bytes / fair / STEPS_PER_LOAD
        self.sent_bytes: list[npt.NDArray[np.float64]] = []
        """Each of shape (servers,): by each server in one step."""
        self._counts = (servers, nodes)

    async def move(self, server: int, node: int, length_bytes: int) -> None:
        """Wait until `length_bytes` have arrived. Cancelled only with the whole simulation."""
        lane = self._free.pop()
        self._servers[lane], self._nodes[lane], self._left_bytes[lane] = server, node, length_bytes
        self._arrived[lane] = trio.Event()
        await self._arrived[lane].wait()
        self._free.append(lane)

    async def run(self) -> None:
        while True:
            await trio.sleep(self.step_s)
            self._step()

    def _step(self) -> None:
        servers, nodes = self._counts
        lanes = np.flatnonzero(self._left_bytes > 0)
        of_server, of_node = self._servers[lanes], self._nodes[lanes]
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


LOADS_MAX = 100_000
"""Of all nodes together."""
MEMORY_BYTES = 64 * GIB
"""Of each node, for chunks."""
MOMENTS = 20
"""Equal parts of the time, in which sent bytes are counted."""


class Warmed(NamedTuple):
    """`first_s`, `all_s`: until the first and the last node was warm. `busiest_server`, `fullest_moment`: the most
    bytes sent by a server and in one of the MOMENTS, divided by the mean.
    """

    nodes: int
    servers: int
    pinned: int
    first_s: float
    all_s: float
    sent_gb_per_s: float
    requests_per_s: float
    busiest_server: float
    fullest_moment: float


class _Memory:
    """The pinned chunks of a node."""

    def __init__(self, node: int, links: Links, endpoints: Endpoints, load_bytes: int, lanes: int) -> None:
        self._node = node
        self._links = links
        self._load_bytes = load_bytes
        # One permanent connection for each lane; `TcpAddress.port` is the number of the server.
        addresses = [endpoints.choose(()) for _ in range(lanes)]
        self._connections = [address.port for address in addresses if isinstance(address, TcpAddress)]
        self.pinned: set[int] = set()

    def lacks(self, chunk: int) -> bool:
        return chunk not in self.pinned

    def has_room(self, chunk: int) -> bool:
        return (len(self.pinned) + 1) * self._load_bytes <= MEMORY_BYTES

    async def bring(self, chunk: int, lane: trio.CapacityLimiter) -> None:
        async with lane:
            server = self._connections.pop()
            await self._links.move(server, self._node, self._load_bytes)
            self._connections.append(server)
            self.pinned.add(chunk)


Shares = list[npt.NDArray[np.int64]]
"""The chunks that each node has to fetch."""


@cache
def owners_of(nodes: int, chunks: int) -> npt.NDArray[np.int32]:
    """Shape (chunks,): the rank of each chunk's owner in the complete job."""
    return Placement(members_of(nodes)).owners(chunk_ids(chunks))


def owned(nodes: int, chunks: int) -> Shares:
    return _by_owner(owners_of(nodes, chunks), nodes)


def inherited(nodes: int, chunks: int, lost: int) -> Shares:
    """What each node fetches after the loss of the first `lost` nodes of a warm job."""
    before = owners_of(nodes, chunks)
    moved = np.flatnonzero(before < lost)
    members = members_of(nodes)
    ids = chunk_ids(chunks).reshape(-1, CHUNK_ID_BYTES)[moved]
    return [moved[share] for share in _by_owner(Placement(members[lost:]).owners(ids), nodes - lost)]


def _by_owner(owners: npt.NDArray[np.int32], nodes: int) -> Shares:
    by_owner = np.argsort(owners, kind="stable")
    return np.split(by_owner, np.cumsum(np.bincount(owners, minlength=nodes))[:-1])


def warmed(shares: Shares, servers: int, rates: Rates, seed: int = 1) -> Warmed:
    """Simulate a job from the first fetch until all nodes are warm."""
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
        self._servers = ServerDirectory([TcpAddress("server", number) for number in range(servers)])
        self._warm_s: list[float] = []

    async def run(self) -> Warmed:
        lanes = self._pace.lanes
        memories = [
            _Memory(node, self._links, Endpoints(self._servers, chance), self._load_bytes, lanes)
            for node, chance in enumerate(self._random.sample(range(1 << 30), len(self._shares)))
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._links.run)
            async with trio.open_nursery() as nodes:
                for node, memory in enumerate(memories):
                    nodes.start_soon(self._warm, node, memory)
            nursery.cancel_scope.cancel()
        return self._result()

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

    def _result(self) -> Warmed:
        sent = np.array(self._links.sent_bytes)
        took_s = max(self._warm_s)
        moments = np.array([part.sum() / len(part) for part in np.array_split(sent.sum(axis=1), MOMENTS)])
        return Warmed(
            len(self._shares),
            sent.shape[1],
            self._wanted,
            min(self._warm_s),
            took_s,
            float(sent.sum()) / took_s / 1e9,
            self._wanted / took_s,
            float(sent.sum(axis=0).max() / sent.sum(axis=0).mean()),
            float(moments.max() / moments.mean()),
        )
