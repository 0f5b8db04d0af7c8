"""How a job gets over nodes that are lost, and how these come back, from the real code under a simulated clock.

What is real: whose each chunk is for each node at any moment, whom it suspects and when it tries them again, and who
needs which files of a group. What is simulated: time, how long it takes until a call to a lost node has failed, and the
reading. Only the chunks of lost nodes are looked at; of the plan a few groups are worked out, and all others are like
them, with other chunks.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt

from bench.job_simulation import chunk_ids, members_of
from bench.pool_simulation_epoch import READ_BYTES_PER_S, group_shares
from dieselfs.cache.member import Member
from dieselfs.cache.placement import Placement
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.limits import (
    CHUNK_TARGET_BYTES,
    PEER_CONNECT_TIMEOUT_S,
    PEER_PROBE_INTERVAL_S,
    PEER_REQUESTS_AT_ONCE_MAX,
    PEER_SILENCE_S,
)
from dieselfs.meta.snapshot import Snapshot
from dieselfs.peers.ownership import Ownership
from dieselfs.peers.suspicion import Suspicion
from dieselfs_server.job_roll import interval_s

FILE_BYTES = 110_000
REFUSED_S = 0.001
"""Until a call to a closed port has failed."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What happens: the first `lost` of so many nodes are lost at second 0, in silence as by a power cut, or with
    closed ports as when they are killed. At `back_s` they are there again, with empty memories, until `end_s`.
    """

    nodes: int
    lost: int
    group_chunks: int
    is_silent: bool
    back_s: float
    end_s: float

    @property
    def group_s(self) -> float:
        """Time in which a node reads its share of a group."""
        return self.group_chunks * CHUNK_TARGET_BYTES / self.nodes / READ_BYTES_PER_S


@dataclass(slots=True)
class Recovery:
    """What it came to: seconds, one for each node that was left; the rest counted in each whole second.

    - `known_s`: until it suspected all that were lost; `stalled_s`: for how long its readers had nothing to read
    - `server_requests`: for pieces that a lost node was asked for before it was suspected
    - `heir_loads`: chunks that others fetched in its place; `own_loads`: that it fetched when it was back
    - `pings`: to lost nodes
    - `trusted_s`: until it asked those that were back for something again
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
    for member in world.members[loss.lost :]:
        _Node(member, world).begin()
    world.run()
    return world.found


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What is wanted of the chunks of the lost in one group: by each node that reads, the chunks, counted from 0."""

    chunks: int
    by_reader: dict[int, list[int]]


def _patterns(loss: Loss) -> Iterator[_Pattern]:
    for shares in group_shares(loss.nodes, loss.group_chunks, FILE_BYTES):
        is_lost = shares.owners < loss.lost
        chunks, places = np.unique(shares.chunks[is_lost], return_inverse=True)
        readers, wanted = np.unique(np.stack([shares.readers[is_lost], places]), axis=1)
        by_reader: dict[int, list[int]] = {}
        for reader, chunk in zip(readers.tolist(), wanted.tolist(), strict=True):
            by_reader.setdefault(reader, []).append(chunk)
        yield _Pattern(len(chunks), by_reader)


class _World:
    """Time, the network, and what all nodes have in common."""

    def __init__(self, loss: Loss, uniform: random.Random) -> None:
        self.loss, self.random = loss, uniform
        self.members = members_of(loss.nodes)
        self.lost = frozenset(member.node for member in self.members[: loss.lost])
        self.now_s = 0.0
        self.found = Recovery()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._shelves: set[tuple[str, int]] = set()
        self._patterns = list(_patterns(loss))
        groups = int(loss.end_s / loss.group_s) + 2
        counts = [self._patterns[group % len(self._patterns)].chunks for group in range(groups)]
        self._firsts = np.cumsum([0, *counts]).tolist()
        ids = self._ids_of_lost(self._firsts[-1])
        self.snapshot = cast(Snapshot, SimpleNamespace(column=lambda name: ids))

    def _ids_of_lost(self, wanted: int) -> npt.NDArray[np.uint8]:
        """So many chunks that the lost nodes own, in no order."""
        ids = chunk_ids(int(wanted * self.loss.nodes / self.loss.lost * 1.3) + 1000)
        placement = Placement(self.members)
        owned = np.concatenate([placement.owned_by(node, ids) for node in sorted(self.lost)])
        chosen = np.random.default_rng(self.random.randrange(1 << 30)).permutation(owned)[:wanted]
        assert len(chosen) == wanted, "more chunks are needed"
        of_lost: npt.NDArray[np.uint8] = ids.reshape(-1, CHUNK_ID_BYTES)[chosen]
        return of_lost

    def at(self, when_s: float, happens: Callable[[], None]) -> None:
        heappush(self._events, (when_s, next(self._numbers), happens))

    def run(self) -> None:
        while self._events and self._events[0][0] < self.loss.end_s:
            self.now_s, _, happens = heappop(self._events)
            happens()

    def wanted(self, reader: int, group: int) -> list[int]:
        """The chunks of the lost of which a node reads files in one group."""
        pattern = self._patterns[group % len(self._patterns)]
        return [self._firsts[group] + chunk for chunk in pattern.by_reader.get(reader, ())]

    def is_lost(self, node: str) -> bool:
        """Whether it does not answer at this moment."""
        return node in self.lost and self.now_s < self.loss.back_s

    def ask(self, node: str, chunk: int) -> None:
        """A node that answers has a chunk, or fetches it."""
        if (node, chunk) not in self._shelves:
            self._shelves.add((node, chunk))
            loads = self.found.own_loads if node in self.lost else self.found.heir_loads
            loads[int(self.now_s)] += 1


class _Node:
    """One that is left: reads its share of group after group, fetching one ahead, and pings whom it suspects."""

    def __init__(self, me: Member, world: _World) -> None:
        self._me = me
        self._world = world
        self._suspicion = Suspicion(lambda: world.now_s)
        self._ownership = Ownership(world.snapshot, me, self._suspicion)
        self._ownership.change(world.members)
        self._planned_s = world.random.uniform(0, world.loss.group_s)
        self._stalled_s = 0.0
        self._is_probing = False
        self._has_failed = False
        self._pinged: set[str] = set()
        self._trusted: set[str] = set()
        self._known: set[str] = set()

    def begin(self) -> None:
        world = self._world
        world.at(self._planned_s, partial(self._fetch, 0))
        hears_s = world.loss.back_s + world.random.uniform(0, interval_s(world.loss.nodes))
        world.at(hears_s, self._hear)
        world.at(world.loss.end_s * (1 - 1e-9), lambda: world.found.stalled_s.append(self._stalled_s))

    def _fetch(self, group: int) -> None:
        """What is wanted of one group, of those who have it; a few are asked at one time."""
        world = self._world
        by_owner: dict[str, list[int]] = {}
        for chunk in world.wanted(self._me.rank, group):
            owner = self._ownership.owner(chunk) or self._me
            by_owner.setdefault(owner.node, []).append(chunk)
        done_s, calls = world.now_s, count(PEER_REQUESTS_AT_ONCE_MAX)
        for node, chunks in by_owner.items():
            if world.is_lost(node):
                failed_s = PEER_SILENCE_S if world.loss.is_silent else REFUSED_S
                at_s = world.now_s + next(calls) // PEER_REQUESTS_AT_ONCE_MAX * failed_s
                world.at(at_s, partial(self._fail, node, len(chunks)))
                done_s = max(done_s, at_s)
            else:
                for chunk in chunks:
                    world.ask(node, chunk)
        needed_s = self._planned_s + world.loss.group_s
        self._stalled_s += max(done_s - needed_s, 0.0)
        self._planned_s = max(needed_s, done_s)
        world.at(self._planned_s, partial(self._fetch, group + 1))

    def _fail(self, node: str, pieces: int) -> None:
        world = self._world
        world.found.server_requests[int(world.now_s)] += pieces
        self._suspect(node)
        self._has_failed = True
        if not self._is_probing:
            self._is_probing = True
            self._probe()

    def _suspect(self, node: str) -> None:
        self._suspicion.failed(node)
        if self._known != self._world.lost:
            self._known.add(node)
            if self._known == self._world.lost:
                self._world.found.known_s.append(self._world.now_s)

    def _hear(self) -> None:
        """The roll tells that they have begun anew."""
        for node in self._world.lost:
            self._suspicion.renewed(node)

    def _probe(self) -> None:
        world = self._world
        for node in [*self._suspicion.due(), *self._unheard()]:
            if node in self._pinged:
                continue
            world.found.pings[int(world.now_s)] += 1
            if world.is_lost(node):
                self._pinged.add(node)
                waits_s = PEER_CONNECT_TIMEOUT_S if self._suspicion.share(node) == 0 else PEER_SILENCE_S
                fails_s = waits_s if world.loss.is_silent else REFUSED_S
                world.at(world.now_s + fails_s, partial(self._miss, node))
            else:
                self._suspicion.proved(node)
                self._trusted.add(node)
                if self._trusted == world.lost:
                    world.found.trusted_s.append(world.now_s - world.loss.back_s)
        world.at(world.now_s + PEER_PROBE_INTERVAL_S, self._probe)

    def _unheard(self) -> list[str]:
        """As `PeerClient.unheard`: of all nodes but the lost ones it has just heard."""
        has_failed, self._has_failed = self._has_failed, False
        silent = self._world.lost if has_failed and self._world.loss.is_silent else ()
        return [node for node in silent if self._world.is_lost(node) and self._suspicion.share(node) > 0]

    def _miss(self, node: str) -> None:
        self._pinged.discard(node)
        self._suspect(node)
