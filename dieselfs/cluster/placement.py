"""Which node of a job owns which chunk: rendezvous hashing, weighted by memory, in integers only. No I/O.

Every process computes the same result on every machine; `docs/internals/cache.md` specifies it to the bit. The owner
of a chunk is the node with the smallest score. A score depends only on the chunk, the node's name and its weight. So a
node that leaves moves only its own chunks, one that joins only those that it gets, and one that returns gets its former
chunks.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from threading import Lock

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.arrays import Hashes
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.cluster.failure_detector import FailureDetector
from dieselfs.cluster.member import Member
from dieselfs.columns import U8, U64
from dieselfs.errors import InvalidInput
from dieselfs.snapshot.reader import Snapshot

WEIGHT_BITS = 6
"""Significant bits of a weight: nodes that differ by less than 1.6 % may count as equal, which is fast."""

_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_UNUSED_BITS = np.uint64(11)
_TABLE_BITS = 10
_FRACTION_BITS = 32
_SCORE_BITS = 24
_PRECISION_BITS = 128
"""Precision of the numbers that are squared for the table: enough for all of its bits."""
_BLOCK_CHUNKS = 32_768
"""Chunks that are placed together: their columns stay in the processor's cache."""
_TILE_HASHES = 32_768
"""Hashes of chunks and members that are compared together, likewise."""
BLOCK_CHUNKS = 64
"""Chunks whose owners are computed together at the first use: 0.2 ms with 1,024 members."""


def weight_of(memory_bytes: int) -> int:
    """The weight of a node: its memory in MiB, rounded down to `WEIGHT_BITS` significant bits."""
    memory_mib = memory_bytes >> 20
    shift = max(memory_mib.bit_length() - WEIGHT_BITS, 0)
    return memory_mib >> shift << shift


def chunk_keys(chunk_ids: npt.NDArray[np.uint8]) -> Hashes:
    """The keys of n chunks, shape (n,); `chunk_ids`: uint8, 16 for each chunk, in any shape."""
    if chunk_ids.size % CHUNK_ID_BYTES or chunk_ids.dtype != U8:
        raise InvalidInput(f"chunk IDs come as bytes, {CHUNK_ID_BYTES} for each")
    halves = np.ascontiguousarray(chunk_ids).reshape(-1).view(U64).reshape(-1, 2)
    return scrambled(scrambled(halves[:, 0]) ^ halves[:, 1])


def scrambled(values: Hashes) -> Hashes:
    """Each number: twice a multiplication modulo 2^64, and the upper half folded onto the lower."""
    mixed = values.astype(np.uint64)
    _scramble(mixed, np.empty_like(mixed))
    return mixed


def _scramble(values: Hashes, scratch: Hashes) -> None:
    for factor in _FACTORS:
        np.multiply(values, factor, out=values)
        np.right_shift(values, _HALF, out=scratch)
        np.bitwise_xor(values, scratch, out=values)


@dataclass(frozen=True, slots=True)
class _Group:
    """Members of one weight: their places among all members, and the keys of their nodes; shape (m,)."""

    weight: int
    places: npt.NDArray[np.int32]
    keys: Hashes

    def parts(self) -> Iterator["_Group"]:
        """The same members, one, then two, four, and so on."""
        start, size = 0, 1
        while start < len(self.places):
            part = slice(start, start + size)
            yield _Group(self.weight, self.places[part], self.keys[part])
            start, size = start + size, 2 * size


@dataclass(slots=True)
class _Bids:
    """For each of n chunks a member, by its place, with its score and hash; each column has shape (n,)."""

    scores: Hashes
    hashes: Hashes
    places: npt.NDArray[np.int32]

    def beat(self, others: "_Bids") -> npt.NDArray[np.bool_]:
        is_equal = self.scores == others.scores
        is_better: npt.NDArray[np.bool_] = self.scores < others.scores
        is_better |= is_equal & (self.hashes > others.hashes)
        is_better |= is_equal & (self.hashes == others.hashes) & (self.places < others.places)
        return is_better

    def improve(self, others: "_Bids") -> None:
        """Replace the bids for which the others are better."""
        is_better = others.beat(self)
        np.copyto(self.scores, others.scores, where=is_better)
        np.copyto(self.hashes, others.hashes, where=is_better)
        np.copyto(self.places, others.places, where=is_better)

    def of(self, chunks: npt.NDArray[np.bool_]) -> "_Bids":
        return _Bids(self.scores[chunks], self.hashes[chunks], self.places[chunks])


class Placement:
    """The owners of chunks among the members of a job. Immutable.

    `members` are ordered by node. Members without memory own nothing, unless none has any.
    """

    def __init__(self, members: Collection[Member]) -> None:
        """Raises InvalidInput for no members, or two of one node."""
        self.members = tuple(sorted(members, key=lambda member: member.node))
        nodes = [member.node for member in self.members]
        if not nodes or len(set(nodes)) < len(nodes):
            raise InvalidInput("a placement needs at least one member, and one per node")
        weights = [weight_of(member.memory_bytes) for member in self.members]
        if not any(weights):
            weights = [1] * len(weights)
        self._place_by_node = {node: place for place, node in enumerate(nodes)}
        self._weights = np.array(weights, np.uint64)
        self._keys = np.array([xxh3_64_intdigest(node.encode()) for node in nodes], np.uint64)
        by_weight = groupby(
            sorted((weight, place) for place, weight in enumerate(weights) if weight), itemgetter(0)
        )
        columns = ((weight, np.array([place for _, place in pairs], np.int32)) for weight, pairs in by_weight)
        self._groups = [_Group(weight, places, self._keys[places]) for weight, places in columns]
        self._is_even = len(self._groups) == 1

    @classmethod
    def of_names(cls, nodes: Iterable[str]) -> "Placement":
        """The placement among nodes with equal memory. Raises InvalidInput as the constructor."""
        return cls([Member.named(node) for node in nodes])

    def without(self, nodes: Collection[str]) -> "Placement":
        """The placement without these nodes; the same one if none would be left."""
        left = [member for member in self.members if member.node not in nodes]
        return Placement(left) if left else self

    def owners(self, chunk_ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        """The owner of each of n chunks, as an index into the members, shape (n,).

        `chunk_ids`: as `Snapshot.column("chunk_ids")`. Raises InvalidInput for malformed chunk IDs.
        """
        keys = chunk_keys(chunk_ids)
        owners = np.empty(len(keys), np.int32)
        for block in _blocks(len(keys)):
            owners[block] = self._best(keys[block], self._groups).places
        return owners

    def owned_by(self, node: str, chunk_ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """The chunks that a member owns, as ascending indices into `chunk_ids`.

        A chunk is dropped as soon as one better member is found: of 1,000 members, few are compared for most chunks.
        """
        place = self._place_by_node[node]
        if not self._weights[place]:
            return np.empty(0, np.int64)
        keys = chunk_keys(chunk_ids)
        return np.concatenate(
            [np.empty(0, np.int64), *(self._owned(place, keys, block) for block in _blocks(len(keys)))]
        )

    def _owned(self, place: int, keys: Hashes, block: slice) -> npt.NDArray[np.int64]:
        chunks, keys = np.arange(block.start, block.stop), keys[block]
        mine = self._bids(keys, np.full(len(keys), place, np.int32))
        for group in self._groups:
            for part in group.parts():
                is_left = ~self._best(keys, [part]).beat(mine)
                chunks, keys, mine = chunks[is_left], keys[is_left], mine.of(is_left)
        return chunks

    def _bids(self, keys: Hashes, places: npt.NDArray[np.int32]) -> _Bids:
        """The bid of each of these members for its chunk."""
        hashes = scrambled(keys ^ self._keys[places])
        return _Bids(self._scores(hashes, self._weights[places]), hashes, places)

    def _best(self, keys: Hashes, groups: Iterable[_Group]) -> _Bids:
        """For each chunk the best member of at least one group: by hashes within a group (fast), then by scores."""
        first, *others = groups
        best = self._best_of(keys, first)
        for group in others:
            best.improve(self._best_of(keys, group))
        return best

    def _best_of(self, keys: Hashes, group: _Group) -> _Bids:
        """For each chunk the member with the largest hash; the first of equal ones."""
        rows = max(_TILE_HASHES // len(group.keys), 1)
        tile, scratch = np.empty((2, rows, len(group.keys)), np.uint64)
        best, places = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int32)
        for start in range(0, len(keys), rows):
            some = keys[start : start + rows]
            hashes = tile[: len(some)]
            np.bitwise_xor(some[:, np.newaxis], group.keys, out=hashes)
            _scramble(hashes, scratch[: len(some)])
            columns = hashes.argmax(axis=1)
            best[start : start + rows] = hashes[np.arange(len(some)), columns]
            places[start : start + rows] = group.places[columns]
        return _Bids(self._scores(best, np.uint64(group.weight)), best, places)

    def _scores(self, hashes: Hashes, weights: Hashes | np.uint64) -> Hashes:
        """With one weight for all, the larger hash has the smaller score: scores are not needed."""
        return np.zeros_like(hashes) if self._is_even else scores_of(hashes, weights)


def _blocks(chunks: int) -> Iterator[slice]:
    for start in range(0, chunks, _BLOCK_CHUNKS):
        yield slice(start, min(start + _BLOCK_CHUNKS, chunks))


def scores_of(hashes: Hashes, weights: Hashes | np.uint64) -> Hashes:
    """The score of each hash for a node of this weight: -log2(hash) / weight, in fixed point; shape (n,).

    For uniform hashes, scores are exponentially distributed with the weight as rate. So the probability that a node has
    the smallest score is proportional to its weight.
    """
    values = np.maximum(hashes >> _UNUSED_BITS, np.uint64(1))
    lengths = np.frexp(values.astype(np.float64))[1].astype(np.uint64)  # in bits; exact: a double holds 53
    values <<= np.uint64(53) - lengths
    rows = (values >> np.uint64(52 - _TABLE_BITS)) & np.uint64((1 << _TABLE_BITS) - 1)
    rests = (values >> np.uint64(52 - _TABLE_BITS - 32)) & np.uint64(0xFFFF_FFFF)
    table = logarithms()
    lower = table[rows]
    fractions = lower + ((table[rows + np.uint64(1)] - lower) * rests >> np.uint64(32))
    logs = (lengths << np.uint64(_FRACTION_BITS)) + fractions
    distances = np.uint64(54 << _FRACTION_BITS) - logs
    scores: Hashes = (distances << np.uint64(_SCORE_BITS)) // weights
    return scores


@cache
def logarithms() -> Hashes:
    """log2(1 + i / 1024) for i from 0 to 1024, as 32-bit fractions, rounded down; by squaring, in integers."""
    rows = [_fraction((1 << _TABLE_BITS) + row) for row in range(1 << _TABLE_BITS)]
    return np.array([*rows, 1 << _FRACTION_BITS], np.uint64)


def _fraction(mantissa: int) -> int:
    """Each squaring of a number from 1 to 2 yields the next bit of its logarithm: whether it exceeds 2."""
    value, fraction = mantissa << (_PRECISION_BITS - _TABLE_BITS), 0
    for _ in range(_FRACTION_BITS):
        value = value * value >> _PRECISION_BITS
        has_passed = value >> (_PRECISION_BITS + 1)
        value >>= has_passed
        fraction = fraction << 1 | has_passed
    return fraction


class _Table:
    """The owners of all chunks in one placement, computed block by block."""

    def __init__(self, placement: Placement, chunk_ids: npt.NDArray[np.uint8]) -> None:
        self.placement = placement
        self._ids = chunk_ids
        self._blocks: dict[int, npt.NDArray[np.int32]] = {}  # two threads may both compute one
        self._own: tuple[str, npt.NDArray[np.int64]] | None = None

    def owner(self, chunk: int) -> Member:
        return self.placement.members[int(self._block(chunk // BLOCK_CHUNKS)[chunk % BLOCK_CHUNKS])]

    def chunks_of(self, node: str) -> npt.NDArray[np.int64]:
        if self._own is None or self._own[0] != node:
            self._own = node, self.placement.owned_by(node, self._ids)
        return self._own[1]

    def _block(self, number: int) -> npt.NDArray[np.int32]:
        block = self._blocks.get(number)
        if block is None:
            ids = self._ids[number * BLOCK_CHUNKS : (number + 1) * BLOCK_CHUNKS]
            self._blocks[number] = block = self.placement.owners(ids)
        return block


class ChunkOwners:
    """The current owner of each chunk: the placement, without chunks that suspected peers do not serve. Thread-safe.

    The chunks of an avoided peer belong to the others, as if it had left; so do those of a returning peer that it does
    not get requests for yet. Each node suspects peers independently. For a moment, two nodes may own one chunk, which
    costs one more fetch. Until `change`, and without other members, this node owns all chunks.
    """

    def __init__(self, snapshot: Snapshot, me: Member, detector: FailureDetector) -> None:
        self._ids = snapshot.column("chunk_ids").reshape(-1, CHUNK_ID_BYTES)
        self._me = me.node
        self._detector = detector
        self._lock = Lock()  # guards changes of the two below
        self._table = _Table(Placement([me]), self._ids)
        # The table, suspected nodes, and the table without them.
        self._without: tuple[_Table, frozenset[str], _Table] | None = None

    def change(self, members: Collection[Member]) -> None:
        """Set the members; this node is one of them."""
        with self._lock:
            self._table = _Table(Placement(members), self._ids)

    def owner(self, chunk: int) -> Member | None:
        """The current owner of a chunk; None for this node."""
        table = self._table
        member = table.owner(chunk)
        if member.node != self._me:
            suspected = self._detector.suspected()
            if member.node in suspected:
                key = int(chunk_keys(self._ids[chunk])[0])
                if not self._detector.is_requested(member.node, key):
                    member = self._table_without(table, suspected).owner(chunk)
        return None if member.node == self._me else member

    def own_chunks(self) -> npt.NDArray[np.int64]:
        """The chunks of this node in the placement, without regard to suspected peers; ascending. Computed once for
        each membership list: 1 s for 1,024 members and 10 million chunks.
        """
        return self._table.chunks_of(self._me)

    def own_among(self, chunks: Collection[int]) -> npt.NDArray[np.int64]:
        """The members of `chunks` that this node owns in the placement: shape (n,)."""
        some = np.fromiter(chunks, np.int64, len(chunks))
        return some[self._table.placement.owned_by(self._me, self._ids[some])]

    def _table_without(self, table: _Table, nodes: frozenset[str]) -> _Table:
        with self._lock:
            if self._without is None or self._without[:2] != (table, nodes):
                self._without = (table, nodes, _Table(table.placement.without(nodes), self._ids))
            return self._without[2]
