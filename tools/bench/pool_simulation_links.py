"""Bytes that flow from servers to nodes, as a fluid: what is on a link at one moment has equal parts of it. No I/O."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import trio

STEPS_PER_LOAD = 16
"""Steps in which a load moves when all links are full: a step that ends late makes it a sixteenth slower at most."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second: of the link of each node, of each server, and of the store behind all servers."""

    node: float
    server: float
    store: float


class Links:
    """Used from one trio thread, in its time. Of what one link has to spare nothing goes to others, so it is no faster
    than in the world.
    """

    def __init__(self, rates: Rates, nodes: int, servers: int, lanes: int, load_bytes: int) -> None:
        """`lanes`: loads of one node at one moment."""
        self._rates = rates
        self._left_bytes = np.zeros(nodes * lanes)
        self._servers = np.zeros(nodes * lanes, np.int64)
        self._nodes = np.zeros(nodes * lanes, np.int64)
        self._arrived = [trio.Event() for _ in range(nodes * lanes)]
        self._free = list(range(nodes * lanes))
        fair = min(rates.node, rates.server * servers / nodes, rates.store / nodes) / lanes
        self._step_s = load_bytes / fair / STEPS_PER_LOAD
        self.sent_bytes: list[npt.NDArray[np.float64]] = []
        """By each server, in each step."""
        self._counts = (servers, nodes)

    @property
    def step_s(self) -> float:
        return self._step_s

    async def move(self, server: int, node: int, length_bytes: int) -> None:
        """Until so many bytes are there. Not to be cancelled but with all else."""
        lane = self._free.pop()
        self._servers[lane], self._nodes[lane], self._left_bytes[lane] = server, node, length_bytes
        self._arrived[lane] = trio.Event()
        await self._arrived[lane].wait()
        self._free.append(lane)

    async def run(self) -> None:
        """Step after step, until cancelled."""
        while True:
            await trio.sleep(self._step_s)
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
        moved = np.minimum(rates * self._step_s, self._left_bytes[lanes])
        self._left_bytes[lanes] -= moved
        self.sent_bytes.append(np.bincount(of_server, moved, servers).astype(np.float64))
        for lane in lanes[self._left_bytes[lanes] <= 0].tolist():
            self._arrived[lane].set()
