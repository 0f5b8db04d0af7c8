"""The plan of an epoch: its order, cut into groups and dealt out to readers. No I/O.

    plan = Plan(snapshot, seed=1, epoch=2)
    share = plan.share(rank=7, world=64, batch=1024, start=12345 * 1024)
    for path in share.paths: ...

A position is a place in the order after skips. Everything is worked out when it is asked for, group by group, so a
reader that begins anywhere begins at once.
"""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.meta.snapshot import Snapshot
from dieselfs.names import printable
from dieselfs.shuffle.cursor import DIGEST_CHARACTERS, Cursor
from dieselfs.shuffle.deal import Deal
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS, Layout, Nodes, Numbers, Order, chunks_of
from dieselfs.shuffle.skips import Skips

_FEW_SHARE = 4
"""Of one file in so many it pays to work out the places by themselves."""
_GROUPS_KEPT = 4
"""Groups whose order is remembered: those that a few readers are in, and the next."""


class Group(NamedTuple):
    """One group of a plan: files that are mixed with each other, and what has to be in memory to serve them.

    `chunks`: every chunk that holds bytes of its files, ascending. A file that spans chunks brings them all, so a
    chunk may be needed by several groups. Positions are `first` up to but not `end`; there are none if all of
    its files are skipped, or if no file begins in its chunks.
    """

    number: int
    first: int
    end: int
    chunks: Numbers
    payload_bytes: int


class Plan:
    """The order of one epoch after skips: positions 0 to `len(plan) - 1`, each with a file.

    May be used from several threads. Not to be pickled: hand on a cursor.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        seed: int = 0,
        epoch: int = 0,
        group_chunks: int = DEFAULT_GROUP_CHUNKS,
        skips: Skips | Iterable[range] = (),
        layout: Layout | None = None,
    ) -> None:
        """`group_chunks`: chunks that are mixed with each other, 0 for all. `skips`: positions of the whole order
        to leave out. `layout`: that of the snapshot, if it is known already, or that of a folder, whose plan this
        then is. Raises InvalidInput for numbers out of range.
        """
        self.snapshot, self.seed, self.epoch, self.group_chunks = snapshot, seed, epoch, group_chunks
        self.layout = Layout.of(snapshot) if layout is None else layout
        self.skips = skips if isinstance(skips, Skips) else Skips(skips)
        if self.skips.end > len(self.layout):
            raise InvalidInput(
                f"cannot skip position {self.skips.end - 1}: the epoch has {len(self.layout)}, counted from 0"
            )
        self._order = Order(self.layout, seed, epoch, group_chunks)
        self._bounds = self.skips.left_before(self._order.bounds)
        self._group_nodes = lru_cache(_GROUPS_KEPT)(lambda group: self._order.nodes(group, group + 1))

    @classmethod
    def at(cls, snapshot: Snapshot, cursor: Cursor, layout: Layout | None = None) -> "Plan":
        """The plan that a cursor stands in; begin at `cursor.position`. Raises InvalidInput if it is another
        snapshot's, or if its numbers do not fit this one.
        """
        folder = b"" if layout is None else layout.folder
        digest = _digest(snapshot, folder)
        if cursor.snapshot != digest:
            where = f", folder {printable(folder)}" if folder else ""
            raise InvalidInput(
                f"the cursor is of snapshot {cursor.snapshot}, not of {digest} (dataset {snapshot.dataset}{where}, "
                f"generation {snapshot.generation}): open what the job began with: generation or tag, and folder"
            )
        plan = cls(snapshot, cursor.seed, cursor.epoch, cursor.group_chunks, cursor.skips, layout)
        plan._check(cursor.position)
        return plan

    def with_epoch(self, epoch: int, skips: Skips | Iterable[range] = ()) -> "Plan":
        """The same for another epoch, which has skips of its own."""
        return Plan(self.snapshot, self.seed, epoch, self.group_chunks, skips, self.layout)

    @property
    def folder(self) -> bytes:
        """What all files of the plan lie below; empty for the whole dataset."""
        return self.layout.folder

    def __len__(self) -> int:
        return len(self.layout) - len(self.skips)

    def cursor(self, position: int) -> Cursor:
        """The cursor of a job that has read everything before `position`."""
        self._check(position)
        return Cursor(
            _digest(self.snapshot, self.folder),
            self.seed,
            self.epoch,
            self.group_chunks,
            position,
            self.skips,
        )

    def _check(self, position: int) -> None:
        if not 0 <= position <= len(self):
            raise InvalidInput(f"there is no position {position}: the plan has {len(self)}, counted from 0")

    # -- files -------------------------------------------------------------------------------------------

    def nodes(self, first: int = 0, end: int | None = None) -> Nodes:
        """The files at positions `first` up to but not `end` (default: to the last), as node numbers."""
        first, end, _ = slice(first, end).indices(len(self))
        return self.nodes_at(np.arange(first, end))

    def nodes_at(self, positions: npt.ArrayLike) -> Nodes:
        """The files at any positions, as node numbers. Sorts the groups from the first position to the last."""
        places = self.skips.whole(positions)
        if not places.size:
            return np.empty(0, np.uint32)
        lowest, highest = int(places.min()), int(places.max())
        if lowest < 0 or highest >= len(self.layout):
            raise InvalidInput(f"a position is out of range: the plan has {len(self)}, counted from 0")
        first, last = (np.searchsorted(self._order.bounds, (lowest, highest), side="right") - 1).tolist()
        if last - first < _GROUPS_KEPT:
            nodes = np.concatenate([self._group_nodes(group) for group in range(first, last + 1)])
        else:
            nodes = self._order.nodes(first, last + 1)
        found: Nodes = nodes[places - self._order.bounds[first]]
        return found

    def nodes_of(self, group: int, positions: Numbers) -> Nodes:
        """As `nodes_at`, of one group. For who asks once for all that he reads of it: if that is little, less is worked
        out than the order of the group, and nothing is remembered.
        """
        first, end = self._order.bounds[group : group + 2].tolist()
        if len(positions) * _FEW_SHARE > end - first:
            return self.nodes_at(positions)
        return self._order.nodes_at(group, self.skips.whole(positions) - first)

    # -- groups ------------------------------------------------------------------------------------------

    @property
    def group_count(self) -> int:
        return self._order.group_count

    def group_bounds(self) -> Numbers:
        """Where each group begins, and behind the last one where it ends: `group_count + 1` positions."""
        return self._bounds

    def group_of(self, position: int) -> int:
        """Number of the group that a position lies in."""
        self._check(position)
        if position == len(self):
            raise InvalidInput(f"position {position} is the end of the plan, and in no group")
        return int(np.searchsorted(self._bounds, position, side="right")) - 1

    def group(self, number: int) -> Group:
        """One group, with its chunks. About 1 ms for 100 chunks with 37 files each."""
        first, end = self._bounds[number : number + 2].tolist()
        chunks = np.unique(chunks_of(self.snapshot, self.nodes(first, end))[1])
        lengths = self.snapshot.column("chunk_payload_lengths")[chunks]
        return Group(number, first, end, chunks, int(lengths.sum(dtype=np.int64)))

    def payload_bytes_of_groups(self) -> Numbers:
        """What `group(number).payload_bytes` is for each group, at once."""
        lengths = self.snapshot.column("chunk_payload_lengths").astype(np.int64)
        files, chunks = chunks_of(self.snapshot, self.nodes())
        groups = np.repeat(np.arange(self.group_count), np.diff(self._bounds))[files]
        pairs = np.unique(groups * max(len(lengths), 1) + chunks)
        groups, chunks = np.divmod(pairs, max(len(lengths), 1))
        return np.bincount(groups, lengths[chunks], self.group_count).astype(np.int64)

    # -- readers -----------------------------------------------------------------------------------------

    def share(
        self,
        rank: int = 0,
        world: int = 1,
        batch: int | None = None,
        start: int = 0,
        worker: int = 0,
        workers: int = 1,
        drop_last: bool = False,
    ) -> "Share":
        """What one reader reads from position `start` on; `Deal` says how. Raises InvalidInput."""
        return Share(
            self,
            rank=rank,
            world=world,
            batch=batch,
            start=start,
            worker=worker,
            workers=workers,
            drop_last=drop_last,
        )


class Share(Deal):
    """The positions that one reader of a plan reads, with their files."""

    def __init__(self, plan: Plan, **dealt: Any) -> None:
        """Use `Plan.share`."""
        super().__init__(len(plan), **dealt)
        self.plan = plan

    def nodes(self, first: int = 0, end: int | None = None) -> Nodes:
        """The files that this reader reads first-th, up to but not end-th (default: to the last), as node numbers."""
        return self.plan.nodes_at(self.positions(first, end))

    @cached_property
    def paths(self) -> "ShuffledPaths":
        """The paths of all its files, in order."""
        return ShuffledPaths(self.plan.snapshot, self.nodes(), self.world)


class ShuffledPaths(Sequence[str]):
    """Paths of an epoch, in order, made when asked for. `nodes` are their numbers in the snapshot; `world` is how many
    ranks share the epoch, of whom one reads these.
    """

    def __init__(self, snapshot: Snapshot, nodes: Nodes, world: int = 1) -> None:
        self.snapshot = snapshot
        self.nodes = nodes
        self.world = world

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ShuffledPaths(self.snapshot, self.nodes[index], self.world)
        return os.fsdecode(self.snapshot.path(int(self.nodes[index])))


def _digest(snapshot: Snapshot, folder: bytes) -> str:
    """What a cursor says it is of. A folder has a digest of its own, because its order is another."""
    digest = sha256(snapshot.digest + folder).digest() if folder else snapshot.digest
    return digest.hex()[:DIGEST_CHARACTERS]
