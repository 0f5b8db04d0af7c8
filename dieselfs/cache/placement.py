"""Which node of a job owns which chunk: rendezvous hashing, weighted by memory, in integers alone. No I/O.

Every process works it out by itself and comes to the same, on every machine; `docs/cache.md` specifies it to the
bit. The owner of a chunk is the node with the smallest score for it, and a score depends on nothing but the chunk, the
node's name and its weight: so a node that leaves moves only the chunks that it owned, one that joins only those that it
gets, and one that comes back finds its old share.
"""

from collections.abc import Collection, Sequence
from functools import cache
from itertools import groupby
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.columns import U8, U64
from dieselfs.errors import InvalidInput

Hashes = npt.NDArray[np.uint64]

WEIGHT_BITS = 6
"""Significant bits of a weight: nodes that differ by less than 1.6 % may count as equal, which makes it fast."""

_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_UNUSED_BITS = np.uint64(11)
_TABLE_BITS = 10
_FRACTION_BITS = 32
_SCORE_BITS = 24
_PRECISION_BITS = 128
"""Of the numbers that are squared for the table: enough that no bit of it is lost."""
_BLOCK_CHUNKS = 32_768
"""Chunks that are placed at one time: their columns stay in the processor's cache."""


class Offer(Protocol):
    """A node, and the memory that it offers."""

    @property
    def node(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...


Member = TypeVar("Member", bound=Offer)


def weight_of(memory_bytes: int) -> int:
    """The weight of a node: its memory in MiB, rounded down to `WEIGHT_BITS` significant bits."""
    memory_mib = memory_bytes >> 20
    shift = max(memory_mib.bit_length() - WEIGHT_BITS, 0)
    return memory_mib >> shift << shift


def node_key(node: str) -> int:
    return xxh3_64_intdigest(node.encode())


def chunk_keys(chunk_ids: npt.NDArray[np.uint8]) -> Hashes:
    """The keys of chunks; `chunk_ids` are their IDs one behind the other, in any shape."""
    if chunk_ids.size % CHUNK_ID_BYTES or chunk_ids.dtype != U8:
        raise InvalidInput(f"chunk IDs come as bytes, {CHUNK_ID_BYTES} for each")
    halves = np.ascontiguousarray(chunk_ids).reshape(-1).view(U64).reshape(-1, 2)
    return scrambled(scrambled(halves[:, 0]) ^ halves[:, 1])


def scrambled(values: Hashes) -> Hashes:
    """Each number by itself: twice a multiplication modulo 2^64 and the upper half folded onto the lower."""
    mixed = values.astype(np.uint64)
    _scramble(mixed, np.empty_like(mixed))
    return mixed


def _scramble(values: Hashes, scratch: Hashes) -> None:
    for factor in _FACTORS:
        np.multiply(values, factor, out=values)
        np.right_shift(values, _HALF, out=scratch)
        np.bitwise_xor(values, scratch, out=values)


class Placement(Generic[Member]):
    """The owners of chunks among the members of a job. Never changes; another list is another placement.

    `members` are ordered by node. Those without memory own nothing, unless none has any.
    """

    def __init__(self, members: Collection[Member]) -> None:
        """Raises InvalidInput if there are no members, or two of one node."""
        self.members = tuple(sorted(members, key=lambda member: member.node))
        nodes = [member.node for member in self.members]
        if not nodes or len(set(nodes)) < len(nodes):
            raise InvalidInput("a placement needs members, each on a node of its own")
        weights = [weight_of(member.memory_bytes) for member in self.members]
        if not any(weights):
            weights = [1] * len(weights)
        weighted = sorted((weight, place) for place, weight in enumerate(weights) if weight)
        self._groups = [
            (weight, [(place, np.uint64(node_key(nodes[place]))) for _, place in group])
            for weight, group in groupby(weighted, key=lambda pair: pair[0])
        ]

    def without(self, nodes: Collection[str]) -> "Placement[Member]":
        """The placement if these nodes were gone; the same if nobody would be left."""
        left = [member for member in self.members if member.node not in nodes]
        return Placement(left) if left else self

    def owner(self, chunk_id: bytes) -> Member:
        """The owner of one chunk. Raises InvalidInput for what is no chunk ID."""
        if len(chunk_id) != CHUNK_ID_BYTES:
            raise InvalidInput(f"a chunk ID has {CHUNK_ID_BYTES} bytes, not {len(chunk_id)}")
        return self.members[int(self.owners(np.frombuffer(chunk_id, U8))[0])]

    def owners(self, chunk_ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        """The owner of each chunk, as an index into the members. Raises InvalidInput for what are no chunk IDs.

        `chunk_ids` are IDs one behind the other, as `Snapshot.column("chunk_ids")` has them.
        """
        keys = chunk_keys(chunk_ids)
        owners = np.empty(len(keys), np.int32)
        for start in range(0, len(keys), _BLOCK_CHUNKS):
            block = slice(start, start + _BLOCK_CHUNKS)
            owners[block] = self._place(keys[block])
        return owners

    def _place(self, keys: Hashes) -> npt.NDArray[np.int32]:
        """Nodes of one weight are compared by their hashes, which is quick; the best of each weight by scores."""
        if len(self._groups) == 1:
            return _best(keys, self._groups[0][1])[1]
        scores = np.full(len(keys), np.iinfo(np.uint64).max, np.uint64)
        hashes = np.zeros(len(keys), np.uint64)
        owners = np.full(len(keys), len(self.members), np.int32)
        for weight, nodes in self._groups:
            group_hashes, group_owners = _best(keys, nodes)
            group_scores = scores_of(group_hashes, weight)
            is_equal = group_scores == scores
            is_better = (group_scores < scores) | (is_equal & (group_hashes > hashes))
            is_better |= is_equal & (group_hashes == hashes) & (group_owners < owners)
            for mine, better in ((scores, group_scores), (hashes, group_hashes), (owners, group_owners)):
                np.copyto(mine, better, where=is_better)
        return owners


def _best(keys: Hashes, nodes: Sequence[tuple[int, np.uint64]]) -> tuple[Hashes, npt.NDArray[np.int32]]:
    """For each chunk the largest hash among the nodes, and whose it is; of equal ones the first node's."""
    hashes, scratch = np.empty_like(keys), np.empty_like(keys)
    best = np.zeros_like(keys)
    owners = np.full(len(keys), nodes[0][0], np.int32)
    is_better = np.empty(len(keys), np.bool_)
    for place, key in nodes:
        np.bitwise_xor(keys, key, out=hashes)
        _scramble(hashes, scratch)
        np.greater(hashes, best, out=is_better)
        np.copyto(best, hashes, where=is_better)
        np.copyto(owners, np.int32(place), where=is_better)
    return best, owners


def scores_of(hashes: Hashes, weight: int) -> Hashes:
    """How far each hash is from owning, for a node of this weight: -log2(hash) / weight, in fixed point.

    A uniform number makes that an exponentially distributed one with the weight as its rate; of several such, each is
    the smallest with a probability in proportion to its rate.
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
    scores: Hashes = (distances << np.uint64(_SCORE_BITS)) // np.uint64(weight)
    return scores


@cache
def logarithms() -> Hashes:
    """log2(1 + i / 1024) for i from 0 to 1024, as 32-bit fractions, rounded down; by squaring, in integers."""
    rows = [_fraction((1 << _TABLE_BITS) + row) for row in range(1 << _TABLE_BITS)]
    return np.array([*rows, 1 << _FRACTION_BITS], np.uint64)


def _fraction(mantissa: int) -> int:
    """Each squaring of a number from 1 to 2 gives the next bit of its logarithm: whether it passes 2."""
    value, fraction = mantissa << (_PRECISION_BITS - _TABLE_BITS), 0
    for _ in range(_FRACTION_BITS):
        value = value * value >> _PRECISION_BITS
        has_passed = value >> (_PRECISION_BITS + 1)
        value >>= has_passed
        fraction = fraction << 1 | has_passed
    return fraction
