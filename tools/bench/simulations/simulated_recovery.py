"""How a job recovers from the loss of nodes, and how these return: the real code under a simulated clock.

Real: the owner of each chunk as each node sees it, suspicion and retries, and which node reads which files of a group.
Simulated: time, the failure of calls to lost nodes, and reading. Only the chunks of lost nodes count; the patterns of a
few groups are repeated for all others, with other chunks.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from bench.simulations.job_simulation import chunk_ids, members_of
from bench.simulations.simulated_epoch import READ_BYTES_PER_S, group_shares
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.cluster.failure_detector import FailureDetector
from dieselfs.cluster.member import Member
from dieselfs.cluster.placement import ChunkOwners, Placement
from dieselfs.limits import (
    CHUNK_TARGET_BYTES,
    PEER_CONNECT_TIMEOUT_S,
    PEER_PROBE_INTERVAL_S,
    PEER_REQUESTS_AT_ONCE_MAX,
    PEER_SILENCE_S,
)
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.leases.lease import interval_s

FILE_BYTES = 110_000
REFUSED_S = 0.001
"""Until a call to a closed port fails."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The first `lost` nodes are lost at second 0: silently, or killed with closed ports. They return at `back_s` with
    empty memories; the simulation ends at `end_s`.
    """

    nodes: int
    lost: int
    group_chunks: int
    is_silent: bool
    back_s: float
    end_s: float

    @property
    def group_s(self) -> float:
        """For a node to read its share of a group."""
        return self.group_chunks * CHUNK_TARGET_BYTES / self.nodes / READ_BYTES_PER_S


@dataclass(slots=True)
class Recovery:
    """Seconds for each remaining node; counts for each whole second.

    - `known_s`: until it suspected all lost nodes; `stalled_s`: waits of its readers; `trusted_s`: until it asked again
    - `server_requests`: for extents requested from a lost node before it was suspected; `pings`: to lost nodes
    - `heir_loads`: chunks that other nodes fetched instead; `own_loads`: that the lost nodes fetched after their return
    """

    known_s: list[float] = field(default_factory=list)
    stalled_s: list[float] = field(default_factory=list)
    server_requests: Counter[int] = field(default_factory=Counter)
    heir_loads: Counter[int] = field(default_factory=Counter)
    own_loads: Counter[int] = field(default_factory=Counter)
    pings: Counter[int] = field(default_factory=Counter)
    trusted_s: list[float] = field(default_factory=list)


def recovery(loss: Loss, seed: int = 1) -> Recovery:
    """Run the simulation of one loss."""
    world = _World(loss, random.Random(seed))
    trio.run(world.run, clock=trio.testing.MockClock(autojump_threshold=0))
    return world.found


def _patterns(loss: Loss) -> Iterator[tuple[int, dict[int, list[int]]]]:
    """Of some groups: the number of chunks of lost nodes, and those that each reader requests, numbered from 0."""
    for shares in group_shares(loss.nodes, loss.group_chunks, FILE_BYTES):
        is_lost = shares.owners < loss.lost
        chunks, places = np.unique(shares.chunks[is_lost], return_inverse=True)
        readers, wanted = np.unique(np.stack([shares.readers[is_lost], places]), axis=1)
        by_reader: dict[int, list[int]] = {}
        for reader, chunk in zip(readers.tolist(), wanted.tolist(), strict=True):
            by_reader.setdefault(reader, []).append(chunk)
        yield len(chunks), by_reader


class _World:
    """The network and the common state of all nodes."""

    def __init__(self, loss: Loss, uniform: random.Random) -> None:
        self.loss, self.random = loss, uniform
        self.members = members_of(loss.nodes)
        self.lost = frozenset(member.node for member in self.members[: loss.lost])
        self.found = Recovery()
        self._cached: set[tuple[str, int]] = set()
        self._patterns = list(_patterns(loss))
        groups = int(loss.end_s / loss.group_s) + 2
        counts = [self._patterns[group % len(self._patterns)][0] for group in range(groups)]
        self._firsts = np.cumsum([0, *counts]).tolist()
        ids = self._ids_of_lost(self._firsts[-1])
        self.snapshot = cast(Snapshot, SimpleNamespace(column=lambda name: ids))

    def _ids_of_lost(self, wanted: int) -> npt.NDArray[np.uint8]:
        """IDs of chunks that the lost nodes own, in random order: uint8 of shape (wanted, CHUNK_ID_BYTES)."""
        ids = chunk_ids(int(wanted * self.loss.nodes / self.loss.lost * 1.3) + 1000)
        placement = Placement(self.members)
        owned = np.concatenate([placement.owned_by(node, ids) for node in sorted(self.lost)])
        chosen = np.random.default_rng(self.random.randrange(1 << 30)).permutation(owned)[:wanted]
        assert len(chosen) == wanted, "more chunks are needed"
        of_lost: npt.NDArray[np.uint8] = ids.reshape(-1, CHUNK_ID_BYTES)[chosen]
        return of_lost

    async def run(self) -> None:
        nodes = [_Node(member, self) for member in self.members[self.loss.lost :]]
        with trio.move_on_at(self.loss.end_s):
            async with trio.open_nursery() as self.tasks:
                for node in nodes:
                    self.tasks.start_soon(node.read)
                    self.tasks.start_soon(node.renew)
        self.found.stalled_s = [node.stalled_s for node in nodes]

    def wanted(self, reader: int, group: int) -> list[int]:
        """The chunks of lost nodes from which a reader needs files in one group."""
        _, by_reader = self._patterns[group % len(self._patterns)]
        return [self._firsts[group] + chunk for chunk in by_reader.get(reader, ())]

    def is_lost(self, node: str) -> bool:
        return node in self.lost and trio.current_time() < self.loss.back_s

    def ask(self, node: str, chunk: int) -> None:
        """A node that answers has the chunk, or fetches it."""
        if (node, chunk) not in self._cached:
            self._cached.add((node, chunk))
            loads = self.found.own_loads if node in self.lost else self.found.heir_loads
            loads[int(trio.current_time())] += 1


class _Node:
    """A remaining node: reads its share of each group, prefetches the next one, and pings suspected nodes."""

    def __init__(self, me: Member, world: _World) -> None:
        self._me = me
        self._world = world
        self._suspicion = FailureDetector(trio.current_time)
        self._ownership = ChunkOwners(world.snapshot, me, self._suspicion)
        self._ownership.change(world.members)
        self._begins_s = world.random.uniform(0, world.loss.group_s)
        self._renews_s = world.loss.back_s + world.random.uniform(0, interval_s(world.loss.nodes))
        self.stalled_s = 0.0
        self._is_probing = self._has_failed = False
        self._pinged, self._trusted, self._known = set[str](), set[str](), set[str]()

    async def read(self) -> None:
        planned_s = self._begins_s
        for group in count():
            await trio.sleep_until(planned_s)
            async with trio.open_nursery() as calls:
                self._fetch(group, calls)
            planned_s += self._world.loss.group_s
            late_s = max(trio.current_time() - planned_s, 0.0)
            self.stalled_s += late_s
            planned_s += late_s

    async def renew(self) -> None:
        """The membership list has new incarnations of the lost nodes."""
        await trio.sleep_until(self._renews_s)
        for node in self._world.lost:
            self._suspicion.restarted(node)

    def _fetch(self, group: int, calls: trio.Nursery) -> None:
        """Request the extents of one group from their owners, a few owners at a time."""
        world = self._world
        by_owner: dict[str, list[int]] = {}
        for chunk in world.wanted(self._me.rank, group):
            owner = self._ownership.owner(chunk) or self._me
            by_owner.setdefault(owner.node, []).append(chunk)
        fails_s = PEER_SILENCE_S if world.loss.is_silent else REFUSED_S
        number = count(PEER_REQUESTS_AT_ONCE_MAX)
        for node, chunks in by_owner.items():
            if world.is_lost(node):
                after_s = next(number) // PEER_REQUESTS_AT_ONCE_MAX * fails_s
                calls.start_soon(self._fail, after_s, node, len(chunks))
            else:
                for chunk in chunks:
                    world.ask(node, chunk)

    async def _fail(self, after_s: float, node: str, extents: int) -> None:
        await trio.sleep(after_s)
        self._world.found.server_requests[int(trio.current_time())] += extents
        self._suspect(node)
        self._has_failed = True
        if not self._is_probing:
            self._is_probing = True
            self._world.tasks.start_soon(self._probe)

    def _suspect(self, node: str) -> None:
        self._suspicion.failed(node)
        if self._known != self._world.lost:
            self._known.add(node)
            if self._known == self._world.lost:
                self._world.found.known_s.append(trio.current_time())

    async def _probe(self) -> None:
        world = self._world
        while True:
            for node in [*self._suspicion.due(), *self._silent()]:
                if node in self._pinged:
                    continue
                world.found.pings[int(trio.current_time())] += 1
                if world.is_lost(node):
                    self._pinged.add(node)
                    world.tasks.start_soon(self._miss, node)
                else:
                    self._suspicion.recovered(node)
                    self._trusted.add(node)
                    if self._trusted == world.lost:
                        world.found.trusted_s.append(trio.current_time() - world.loss.back_s)
            await trio.sleep(PEER_PROBE_INTERVAL_S)

    def _silent(self) -> list[str]:
        """As `PeerClient.silent`; all remaining nodes have just answered."""
        has_failed, self._has_failed = self._has_failed, False
        silent = self._world.lost if has_failed and self._world.loss.is_silent else ()
        return [node for node in silent if self._world.is_lost(node) and self._suspicion.share(node) > 0]

    async def _miss(self, node: str) -> None:
        """A ping that fails."""
        waits_s = PEER_CONNECT_TIMEOUT_S if self._suspicion.share(node) == 0 else PEER_SILENCE_S
        await trio.sleep(waits_s if self._world.loss.is_silent else REFUSED_S)
        self._pinged.discard(node)
        self._suspect(node)
