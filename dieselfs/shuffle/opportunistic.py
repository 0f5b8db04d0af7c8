"""An order that follows the memory: files of chunks that are there come first (DeepIO's opportunistic order). No I/O.

Chunks arrive when they arrive. Each next file is drawn at random from the remaining files of chunks that have arrived;
the draw at a position is a function of (seed, epoch, position) and of these files. So the log of arrivals, one line for
each chunk, repeats an order bit by bit.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import lgamma, log, log2
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers
from dieselfs.cluster.holdings import FAR, HERE
from dieselfs.cluster.node_list import node_list, parse_node_list
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.assignment import ChunkHomes, local_order, node_numbers
from dieselfs.shuffle.cursor import check_sum
from dieselfs.shuffle.order import Layout, Order, mix, nodes_of, stream
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot

# So that keys are independent of those of chunks and files, 1 and 2, and of importance sampling, 3 and 4.
_DRAWS = 5

_HEAD = re.compile(
    r"opportunistic1 snapshot=([0-9a-f]{24}) seed=([0-9]{1,20}) epoch=([0-9]{1,20}) rank=([0-9]{1,10}) "
    r"world=([0-9]{1,10})(?: nodes=([!-~]+))? check=([0-9a-f]{8})"
)
_ARRIVAL = re.compile(r"([0-9]{1,15}) ([0-9]{1,15})")


class Arrival(NamedTuple):
    """`part` can be drawn from since `position`."""

    position: int
    part: int


@dataclass(frozen=True, slots=True)
class ServedLog:
    """What repeats an order. `snapshot`: the beginning of the digest of the snapshot (and folder), as in a cursor.
    `nodes`: as in `ReaderSpec`.
    """

    snapshot: str
    seed: int
    epoch: int
    rank: int
    world: int
    arrivals: tuple[Arrival, ...] = ()
    nodes: tuple[str, ...] = ()

    def __setstate__(self, state: list[Any]) -> None:
        """A pickled log; those of the first release have no `nodes`."""
        for field, value in zip(fields(self), [*state, ()], strict=False):
            object.__setattr__(self, field.name, value)

    def check(self, other: "ServedLog") -> None:
        """Raises InvalidInput if this is the log of another order than `other`."""
        if self.before(0) != other.before(0):
            raise InvalidInput(
                "the log is of another order: give the generation, folder, seed, epoch, rank, world and nodes of that "
                "run"
            )

    def before(self, position: int) -> "ServedLog":
        """The log of an order that was interrupted at a position."""
        return replace(self, arrivals=tuple(one for one in self.arrivals if one.position < position))

    def __str__(self) -> str:
        lines = "".join(f"{position} {part}\n" for position, part in self.arrivals)
        head = f"snapshot={self.snapshot} seed={self.seed} epoch={self.epoch} rank={self.rank} world={self.world}"
        head += f" nodes={node_list(self.nodes)}" if self.nodes else ""
        return f"opportunistic1 {head} check={check_sum(head + lines)}\n{lines}"

    @classmethod
    def parse(cls, text: str) -> "ServedLog":
        """The log of a text. Raises InvalidInput for any other, or one that was truncated or changed."""
        head, _, lines = text.partition("\n")
        match = _HEAD.fullmatch(head)
        if match is None:
            raise InvalidInput(f"not a log of an opportunistic order: it begins with {head[:60]!r}")
        arrivals = []
        for number, line in enumerate(lines.splitlines(), 2):
            arrival = _ARRIVAL.fullmatch(line)
            if arrival is None:
                raise InvalidInput(
                    f"line {number} of the log of an order is {line[:60]!r}: give POSITION CHUNK"
                )
            arrivals.append(Arrival(int(arrival[1]), int(arrival[2])))
        seed, epoch, rank, world = map(int, match.groups()[1:5])
        nodes = parse_node_list(match[6]) if match[6] else ()
        found = cls(match[1], seed, epoch, rank, world, tuple(arrivals), nodes)
        if str(found) != text:
            raise InvalidInput("the log of an order was truncated or changed: its checksum does not match")
        return found


class Parts:
    """The files of one rank by chunk. The files of all chunks, in the seeded order of the chunks, are cut into equal
    pieces, one for each rank; so ranks have as many files, except for one, and share at most the chunks at the cuts.
    With nodes, each piece has files that the node of its rank owns, as far as the equal counts allow.
    """

    def __init__(
        self,
        layout: Layout,
        seed: int,
        epoch: int,
        rank: int = 0,
        world: int = 1,
        nodes: tuple[str, ...] = (),
        snapshot: Snapshot | None = None,
    ) -> None:
        """`nodes`: of the ranks, as in `ReaderSpec`, with the `snapshot`, which has the homes of the files. Raises
        InvalidInput for numbers out of range.
        """
        ReaderSpec(rank, world)
        files, chunks = _of_all_ranks(layout, seed, epoch, world, nodes, snapshot)
        of_rank = slice(rank * len(files) // world, (rank + 1) * len(files) // world)
        files, chunks = files[of_rank], chunks[of_rank]
        starts = np.flatnonzero(np.diff(chunks, prepend=-1))
        self.order: list[int] = chunks[starts].tolist()
        """The numbers of the parts with files, as they should be loaded."""
        self.nodes: dict[int, Nodes] = dict(zip(self.order, np.split(files, starts[1:]), strict=False))

    @classmethod
    def of(cls, plan: Plan, reader: ReaderSpec) -> "Parts":
        """The files of a reader, with the homes of a job if it has `nodes`."""
        spec, snapshot = plan.spec, plan.snapshot if reader.nodes else None
        return cls(plan.layout, spec.seed, spec.epoch, reader.rank, reader.world, reader.nodes, snapshot)

    def __len__(self) -> int:
        """Number of files."""
        return sum(map(len, self.nodes.values()))


@lru_cache(1)
def _of_all_ranks(
    layout: Layout, seed: int, epoch: int, world: int, nodes: tuple[str, ...], snapshot: Snapshot | None
) -> tuple[npt.NDArray[Any], Numbers]:
    """The files of all ranks, one after the other, and their chunks in the layout: both of shape (files,). The last
    result is kept, for the next rank.
    """
    chunks = Order(layout, PlanSpec(seed, epoch)).chunks
    files, chunks = layout.files_of(chunks), np.repeat(chunks, layout.counts[chunks])
    if snapshot is None or not nodes or not len(files):
        return files, chunks
    homes = ChunkHomes(snapshot, nodes).of_files(nodes_of(files))
    taken = local_order(homes, np.array([len(files)], np.int64), node_numbers(nodes, world))
    return files[taken], chunks[taken]


def distances_of(parts: Parts, snapshot: Snapshot, distances: Numbers | None) -> dict[int, int]:
    """How far each part is, nearest first: as they should be loaded. `distances`: shape (chunks,), HERE, NEAR or FAR
    (`cluster.holdings`) for each chunk of the snapshot; None: all are FAR.
    """
    if distances is None:
        return dict.fromkeys(parts.order, FAR)
    counts, firsts = snapshot.column("counts"), snapshot.column("firsts")
    chunks, found = snapshot.column("extent_chunks"), dict.fromkeys(parts.order, HERE)  # if it has no bytes
    for part, names in parts.nodes.items():
        nodes = nodes_of(names)
        for node in nodes[counts[nodes] > 0][:1].tolist():
            found[part] = int(distances[chunks[firsts[node]]])
    return {part: found[part] for part in sorted(found, key=found.__getitem__)}


class OpportunisticOrder:
    """The order of one rank in one epoch: each of its files once. Used by one thread at a time."""

    def __init__(self, parts: Parts, seed: int, epoch: int) -> None:
        self.position = 0
        self.arrivals: list[Arrival] = []
        self.choice_bits = 0.0
        """log2 of the number of orders that could have been drawn, with these arrivals."""
        self._parts = parts
        self._stream = stream(seed, epoch, _DRAWS)
        self.waiting = set(parts.nodes)
        """The parts that have not arrived."""
        self._pool: list[int] = []

    @property
    def available(self) -> int:
        """Files that can be drawn now."""
        return len(self._pool)

    def arrive(self, part: int) -> None:
        """The files of a part can be drawn from now on. Raises InvalidInput for one that does not exist, or again."""
        if part not in self.waiting:
            raise InvalidInput(
                f"chunk {part} has arrived before, or is none of this rank: the log is of another run"
            )
        self.waiting.remove(part)
        self.arrivals.append(Arrival(self.position, part))
        self._pool += self._parts.nodes[part].tolist()

    def draw(self, count: int) -> list[int]:
        """The next files, as node numbers: as many as are available, at most `count`."""
        count = min(count, len(self._pool))
        positions = np.arange(self.position, self.position + count, dtype=np.uint64)
        keys = mix(self._stream ^ mix(positions)).tolist()
        pool, drawn = self._pool, []
        for key in keys:
            size = len(pool)
            self.choice_bits += log2(size)
            place = key % size
            drawn.append(pool[place])
            pool[place] = pool[-1]
            pool.pop()
        self.position += count
        return drawn

    def entropy_ratio(self) -> float:
        """`choice_bits`, relative to those of a full shuffle of as many files; 1.0 if only one order exists."""
        full = lgamma(self.position + 1) / log(2)
        return min(self.choice_bits / full, 1.0) if full else 1.0


class Served(NamedTuple):
    """An order that was served. `nodes`: shape (n,), its files; `entropy_ratio`: as `OpportunisticOrder.entropy_ratio`.

    `buffered_bytes_max`: of files that had arrived and were still to be drawn, at most.
    """

    nodes: Numbers
    entropy_ratio: float
    buffered_bytes_max: int


def served(parts: Parts, log_: ServedLog, sizes: Callable[[Nodes], int] = len) -> Served:
    """The order of a log, as far as it has files. `sizes(nodes)`: their bytes together. Raises InvalidInput."""
    order, nodes = OpportunisticOrder(parts, log_.seed, log_.epoch), []
    buffered_bytes = buffered_bytes_max = 0
    for position, part in log_.arrivals:
        drawn = _advance(order, position)
        order.arrive(part)
        buffered_bytes += sizes(parts.nodes[part]) - sizes(np.array(drawn, np.uint32))
        buffered_bytes_max = max(buffered_bytes_max, buffered_bytes)
        nodes += drawn
    nodes += order.draw(order.available)
    return Served(np.array(nodes, np.int64), order.entropy_ratio(), buffered_bytes_max)


def _advance(order: OpportunisticOrder, position: int) -> list[int]:
    drawn = order.draw(max(position - order.position, 0))
    if order.position != position:
        raise InvalidInput(f"the log of an order has no files for position {order.position}")
    return drawn


def log_of(snapshot: str, spec: PlanSpec, reader: ReaderSpec, arrivals: Iterable[Arrival]) -> ServedLog:
    """The log of an order."""
    head = snapshot, spec.seed, spec.epoch, reader.rank, reader.world
    return ServedLog(*head, tuple(arrivals), reader.nodes)


def log_ahead(
    plan: Plan,
    reader: ReaderSpec,
    distances: Numbers | None,
    mixed_chunks: int = 0,
    before: Sequence[Arrival] = (),
) -> ServedLog:
    """The log of an order that is drawn before it is read, as if parts arrived in time. Those that are HERE arrive at
    the start; each other one while files of `mixed_chunks` parts are left to draw from, 0: all at the start.
    `distances`: see `distances_of`. `before`: arrivals of an order that is continued at the start of the reader. Raises
    InvalidInput if these are of another order.
    """
    spec, parts = plan.spec, Parts.of(plan, reader)
    order = OpportunisticOrder(parts, spec.seed, spec.epoch)
    for position, part in before:
        _advance(order, position)
        order.arrive(part)
    mixed_files = len(parts) * mixed_chunks // max(len(parts.order), 1) if mixed_chunks else len(parts)
    if order.waiting:
        _advance(order, max(reader.start, order.position))
    for part, distance in distances_of(parts, plan.snapshot, distances).items():
        if part not in order.waiting:
            continue
        if distance != HERE and order.available > mixed_files:
            order.draw(order.available - mixed_files)
        order.arrive(part)
    return log_of(plan.cursor(0).snapshot, spec, reader, order.arrivals)
