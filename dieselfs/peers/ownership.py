"""Whose each chunk is, just now: placed among the members, but for what peers are not asked for at the moment.

The chunks of a peer that is avoided go to the others, as if it were gone; of one that returns, those that it is not
asked for yet. Each node doubts by itself, so for moments two may take a chunk for theirs: that costs a fetch, and no
more.
"""

from collections.abc import Collection
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dieselfs.cache.member import Member
from dieselfs.cache.placement import Placement, Succession, chunk_keys
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.meta.snapshot import Snapshot

BLOCK_CHUNKS = 512
"""Chunks whose owners are worked out together, when the first of them is asked for: 1 ms with 1,024 members."""


class Doubts(Protocol):
    """What is held against peers, by the names of their nodes: `PeerClient`. Safe to use from many threads."""

    def doubted(self) -> frozenset[str]: ...

    def is_asked(self, node: str, chunk_key: int) -> bool: ...


class _Table:
    """The owners of all chunks in one placement, worked out block by block.

    `before` is a table of other members: where it has a block, only what is different in this one is worked out.
    """

    def __init__(
        self,
        placement: Placement[Member],
        chunk_ids: npt.NDArray[np.uint8],
        before: "_Table | None" = None,
    ) -> None:
        self.placement = placement
        self._ids = chunk_ids
        # Not what was before that in its turn: nothing is kept of members of long ago.
        self._known = {} if before is None else before._blocks
        self._succession = Succession(before.placement if before else placement, placement)
        self._blocks: dict[int, npt.NDArray[np.int32]] = {}  # worked out twice if two threads come at once
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
            known = self._known.get(number)
            block = self.placement.owners(ids) if known is None else self._succession.owners(known, ids)
            self._blocks[number] = block
        return block


class Ownership:
    """Safe to use from many threads. Until `change`, and whenever there are no others, all chunks are this node's."""

    def __init__(self, snapshot: Snapshot, me: Member, doubts: Doubts) -> None:
        self._ids = snapshot.column("chunk_ids").reshape(-1, CHUNK_ID_BYTES)
        self._me = me.node
        self._doubts = doubts
        self._lock = Lock()  # guards changes of the two below
        self._table = _Table(Placement([me]), self._ids)
        self._without: tuple[_Table, frozenset[str], _Table] | None = (
            None  # the table, and what is left without some
        )

    def change(self, members: Collection[Member]) -> None:
        """These are the members from now on, this node among them."""
        with self._lock:
            self._table = _Table(Placement(members), self._ids, self._table)

    def owner(self, chunk: int) -> Member | None:
        """The node that is to be asked for a chunk; None for this one."""
        table = self._table
        member = table.owner(chunk)
        if member.node != self._me:
            doubted = self._doubts.doubted()
            if member.node in doubted and not self._doubts.is_asked(member.node, self._key(chunk)):
                member = self._table_without(table, doubted).owner(chunk)
        return None if member.node == self._me else member

    def own_chunks(self) -> npt.NDArray[np.int64]:
        """The chunks that the placement gives to this node, whoever is doubted. Worked out once for each list of
        members: 1 s for 1,024 and 10 million chunks.
        """
        return self._table.chunks_of(self._me)

    def own_among(self, chunks: Collection[int]) -> npt.NDArray[np.int64]:
        """Those of these chunks that the placement gives to this node."""
        some = np.fromiter(chunks, np.int64, len(chunks))
        return some[self._table.placement.owned_by(self._me, self._ids[some])]

    def _key(self, chunk: int) -> int:
        return int(chunk_keys(self._ids[chunk])[0])

    def _table_without(self, table: _Table, nodes: frozenset[str]) -> _Table:
        with self._lock:
            if self._without is None or self._without[:2] != (table, nodes):
                self._without = (table, nodes, _Table(table.placement.without(nodes), self._ids, table))
            return self._without[2]
