"""The plan of an epoch: its order, in groups and shares. No I/O.

    plan = Plan(snapshot, PlanSpec(seed=1, epoch=2))
    share = plan.share(rank=7, world=64, batch=1024, start=12345 * 1024)
    for path in share.paths: ...

A position is a place in the order after skips. Groups are computed on demand, so a reader can start at any position
without delay.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers, Positions, distinct
from dieselfs.errors import InvalidInput
from dieselfs.names import printable
from dieselfs.shuffle.assignment import ChunkHomes, HomesOf
from dieselfs.shuffle.cursor import DIGEST_CHARACTERS, Cursor
from dieselfs.shuffle.order import GroupOrder, Layout, chunks_of, nodes_of
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.policies import KnownLosses, order_of, policy_of
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot

_FEW_DIVISOR = 4
"""Up to one file in this many of a group, `nodes_at` of the order is faster than sorting the group."""
_GROUPS_KEPT = 4
"""Groups whose order is cached: those of a few readers, and the next."""


class Group(NamedTuple):
    """One group of a plan: files that are mixed with each other, and the chunks that serve them.

    `chunks`: shape (n,), every chunk with extents of its files, ascending. Several groups may need one chunk, because
    files may span chunks. Positions are `first` up to but not `end`; there are none if all
    of its files are skipped, or if no file begins in its chunks.
    """

    number: int
    first: int
    end: int
    chunks: Numbers
    payload_bytes: int


class Plan:
    """The order of one epoch after skips: positions 0 to `len(plan) - 1`, each with a file.

    Thread-safe. Cannot be pickled: pass a cursor instead.
    """

    is_assigned = False

    def __init__(
        self,
        snapshot: Snapshot,
        spec: PlanSpec,
        layout: Layout | None = None,
        losses: KnownLosses | None = None,
    ) -> None:
        """`layout`: that of the spec's folder in the snapshot, if it exists already. `losses`: see `order_of`.

        Raises InvalidInput as `order_of`, and for a skip beyond the end; NotFound, InvalidInput as `Layout.of`.
        """
        self.snapshot, self.spec, self.skips = snapshot, spec, spec.skips
        self.layout = Layout.of(snapshot, spec.folder) if layout is None else layout
        assert self.layout.folder == spec.folder
        if self.skips.end > len(self.layout):
            raise InvalidInput(
                f"cannot skip position {self.skips.end - 1}: the epoch has {len(self.layout)}, counted from 0"
            )
        self._arrange(order_of(self.layout, spec, losses))

    def _arrange(self, order: GroupOrder) -> None:
        self._order = order
        self._total = int(order.bounds[-1])  # before skips
        self._bounds = self.skips.left_before(order.bounds)
        self._group_names = lru_cache(_GROUPS_KEPT)(lambda group: self._order.nodes(group, group + 1))

    @classmethod
    def at(cls, snapshot: Snapshot, cursor: Cursor, layout: Layout | None = None) -> "Plan":
        """The plan of a cursor; start at `cursor.position`. Raises InvalidInput if the cursor is of another snapshot,
        or if its numbers are out of range.
        """
        folder = b"" if layout is None else layout.folder
        plan = cls(snapshot, replace(cursor.spec, folder=folder), layout)
        plan.check_cursor(cursor)
        return plan

    def check_cursor(self, cursor: Cursor) -> None:
        """Raises InvalidInput if a cursor is of another snapshot or folder, or beyond the end."""
        snapshot, folder, digest = self.snapshot, self.spec.folder, self._digest()
        if cursor.spec.policy != self.spec.policy:
            raise InvalidInput(f"the cursor is of policy {cursor.spec.policy}, not of {self.spec.policy}")
        if cursor.snapshot != digest:
            where = f", folder {printable(folder)}" if folder else ""
            raise InvalidInput(
                f"the cursor is of snapshot {cursor.snapshot}, not of {digest} (dataset {snapshot.dataset}{where}, "
                f"generation {snapshot.generation}): open the generation (or tag) and folder of that job, "
                "and choose the same files"
            )
        self._check(cursor.position)

    def with_epoch(self, epoch: int, skips: Skips | Iterable[range] = ()) -> "Plan":
        """The plan of another epoch, with its skips."""
        skips = skips if isinstance(skips, Skips) else Skips(skips)
        return Plan(self.snapshot, replace(self.spec, epoch=epoch, skips=skips), self.layout)

    def __len__(self) -> int:
        return self._total - len(self.skips)

    @property
    def has_cursors(self) -> bool:
        return bool(policy_of(self.spec).kind)

    def cursor(self, position: int) -> Cursor:
        """The cursor of a job that has read everything before `position`. Raises InvalidInput without `has_cursors`."""
        self._check(position)
        if not self.has_cursors:
            raise InvalidInput(f"an order of policy {self.spec.policy} has no cursor")
        return Cursor(self._digest(), replace(self.spec, folder=b""), position)

    def _digest(self) -> str:
        """The digest in a cursor. A folder and a selection have their own, because their orders differ."""
        digest, folder, selection = self.snapshot.digest, self.spec.folder, self.layout.selection
        part = folder + b"\0" + selection if selection else folder
        return (sha256(digest + part).digest() if part else digest).hex()[:DIGEST_CHARACTERS]

    def _check(self, position: int) -> None:
        if not 0 <= position <= len(self):
            raise InvalidInput(f"there is no position {position}: the plan has {len(self)}, counted from 0")

    # -- files -------------------------------------------------------------------------------------------

    def nodes(self, first: int = 0, end: int | None = None) -> Nodes:
        """The files at positions `first` up to but not `end` (default: to the last), as node numbers."""
        first, end, _ = slice(first, end).indices(len(self))
        return self.nodes_at(np.arange(first, end))

    def nodes_at(self, positions: npt.ArrayLike) -> Nodes:
        """The files at any positions, as node numbers; the same shape. Sorts the groups from the first position
        to the last.
        """
        return nodes_of(self.names_at(positions))

    def names_at(self, positions: npt.ArrayLike) -> npt.NDArray[Any]:
        """As `nodes_at`, with the names of a selection: see `order.name_of`."""
        places = self.skips.whole(positions)
        if not places.size:
            return np.empty(0, np.uint64)
        lowest, highest = int(places.min()), int(places.max())
        if lowest < 0 or highest >= self._total:
            raise InvalidInput(f"a position is out of range: the plan has {len(self)}, counted from 0")
        first, last = (np.searchsorted(self._order.bounds, (lowest, highest), side="right") - 1).tolist()
        if last - first < _GROUPS_KEPT:
            names = np.concatenate([self._group_names(group) for group in range(first, last + 1)])
        else:
            names = self._order.nodes(first, last + 1)
        found: npt.NDArray[Any] = names[places - self._order.bounds[first]]
        return found

    def nodes_of(self, group: int, positions: Positions) -> Nodes:
        """As `nodes_at`, within one group, for a reader that needs it once. For few positions the group is not sorted,
        and nothing is cached.
        """
        first, end = self._order.bounds[group : group + 2].tolist()
        if len(positions) * _FEW_DIVISOR > end - first:
            return self.nodes_at(positions)
        return nodes_of(self._order.nodes_at(group, self.skips.whole(positions) - first))

    def is_single(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these files the plan has once: shape (n,), as `nodes`."""
        return self._order.is_single(nodes)

    # -- groups ------------------------------------------------------------------------------------------

    @property
    def group_count(self) -> int:
        return len(self._bounds) - 1

    def group_bounds(self) -> Positions:
        """Shape (group_count + 1,): the start of each group, and the end of the last one."""
        return self._bounds

    def group_of(self, position: int) -> int:
        """Number of the group of a position."""
        self._check(position)
        if position == len(self):
            raise InvalidInput(f"position {position} is the end of the plan, and in no group")
        return int(np.searchsorted(self._bounds, position, side="right")) - 1

    def group(self, number: int) -> Group:
        """One group, with its chunks. About 1 ms for 100 chunks with 37 files each."""
        first, end = self._bounds[number : number + 2].tolist()
        chunks = distinct(chunks_of(self.snapshot, self.nodes(first, end))[1])
        lengths = self.snapshot.column("chunk_payload_lengths")[chunks]
        return Group(number, first, end, chunks, int(lengths.sum(dtype=np.int64)))

    def payload_bytes_of_groups(self) -> Numbers:
        """`group(number).payload_bytes` of all groups at once: shape (group_count,)."""
        lengths = self.snapshot.column("chunk_payload_lengths").astype(np.int64)
        files, chunks = chunks_of(self.snapshot, self.nodes())
        groups = np.repeat(np.arange(self.group_count), np.diff(self._bounds))[files]
        pairs = distinct(groups * max(len(lengths), 1) + chunks)
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
        nodes: Sequence[str] = (),
    ) -> "Share":
        """The share of one reader from position `start` on; `ReaderSpec` has the arguments. Raises InvalidInput."""
        return Share(self, ReaderSpec(rank, world, batch, start, worker, workers, drop_last, tuple(nodes)))

    def homes_of(self, nodes: Sequence[str]) -> HomesOf:
        """The homes of positions among these nodes, see `ReaderSpec`."""
        homes = ChunkHomes(self.snapshot, nodes)
        return lambda positions: homes.of_files(self.nodes_at(positions))


class Share(Partition):
    """The positions that one reader of a plan reads, with their files."""

    def __init__(self, plan: Plan, reader: ReaderSpec) -> None:
        """Raises InvalidInput if the reader starts beyond the end of the plan."""
        is_local = bool(reader.nodes) and not plan.is_assigned
        super().__init__(len(plan), reader, plan.homes_of(reader.nodes) if is_local else None)
        self.plan = plan

    def nodes(self, first: int = 0, end: int | None = None) -> Nodes:
        """The files number `first` up to but not `end` of this reader (default: all), as node numbers."""
        return self.plan.nodes_at(self.positions(first, end))

    @cached_property
    def paths(self) -> "ShuffledPaths":
        """The paths of all its files, in order."""
        return ShuffledPaths(self.plan.snapshot, self.nodes(), self.world, self)


class ShuffledPaths(Sequence[str]):
    """Paths of a share, in order, made on access. `nodes`: shape (n,), their node numbers; `world`: the number of ranks
    that read the epoch.

    They are the files number `first` and following of `share`; this is None if they do not follow each other.
    """

    def __init__(
        self, snapshot: Snapshot, nodes: Nodes, world: int = 1, share: Share | None = None, first: int = 0
    ) -> None:
        self.snapshot = snapshot
        self.nodes = nodes
        self.world = world
        self.share = share
        self.first = first

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, _, step = index.indices(len(self))
            share = self.share if step == 1 else None
            return ShuffledPaths(self.snapshot, self.nodes[index], self.world, share, self.first + start)
        return os.fsdecode(self.snapshot.path(int(self.nodes[index])))
