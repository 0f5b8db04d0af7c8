"""Where the blocks of a changed snapshot begin in its columns, from the base and the changes. Arithmetic, no I/O.

Of what stays between two changes, each number differs by a constant from that in the base. So blocks can be written in
any order, and a block without a change is a copy.
"""

import stat
from operator import add
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.splice import Splice

_SCANNED = 1 << 16


class Amounts(NamedTuple):
    """What some nodes have together: bytes of paths, children, extents, links, and bytes of their targets."""

    path_bytes: int
    children: int
    extents: int
    links: int
    link_bytes: int


class RunningSums:
    """`amounts`: in the order of Amounts, those of the nodes `places`, which ascend: shape (n,), or 0 for all."""

    def __init__(self, places: Numbers, amounts: tuple[npt.NDArray[Any] | int, ...]) -> None:
        self._places, self._sums = places, np.zeros((len(places) + 1, len(amounts)), np.int64)
        for column, values in enumerate(amounts):
            self._sums[1:, column] = np.cumsum(np.broadcast_to(values, len(places)), dtype=np.int64)

    def before(self, place: int) -> Numbers:
        """Of the nodes before `place`: shape (5,)."""
        sums: Numbers = self._sums[np.searchsorted(self._places, place)]
        return sums


class Starts:
    """The places of blocks of new nodes. `gone`: old nodes that are removed or replaced, `changed`: new nodes that are
    listed in the delta, `children`: by how many more children new folders have.
    """

    def __init__(
        self, base: Snapshot, nodes: Splice, gone: RunningSums, changed: RunningSums, children: RunningSums
    ) -> None:
        self._base, self._nodes = base, nodes
        self._gone, self._changed, self._children = gone, changed, children
        self._folders = range(0)

    def shift(self, place: int, old: int) -> Amounts:
        """By how much more the nodes before a place have than those of the base before `old`, which stays there."""
        more = self._changed.before(place) + self._children.before(place) - self._gone.before(old)
        return Amounts(*more.tolist())

    def before(self, place: int) -> Amounts:
        """What the new nodes before a place have."""
        base, old = self._base, self._nodes.next_old(place)
        limit = np.uint32(old)  # a number of another type would make a copy of the column
        links = int(np.searchsorted(base.column("link_nodes"), limit))
        of_base = Amounts(
            int(base.column("path_ends")[old - 1]) if old else 0,
            max(
                int(np.searchsorted(base.column("parents"), limit)) - 1, 0
            ),  # they ascend, and the root is no child
            self._extents_before(old),
            links,
            int(base.column("link_ends")[links - 1]) if links else 0,
        )
        return Amounts(*map(add, of_base, self.shift(place, old)))

    def _extents_before(self, old: int) -> int:
        """The first extent of the first node from `old` on that is no folder. The folders before it are remembered."""
        base, found = self._base, len(self._base)
        first = self._folders.stop if old in self._folders else old
        for start in range(first, len(base), _SCANNED):
            others = np.flatnonzero(base.types(slice(start, start + _SCANNED)) != stat.S_IFDIR)
            if len(others):
                found = start + int(others[0])
                break
        self._folders = range(old, found)
        return int(base.column("firsts")[found]) if found < len(base) else base.header.extents


def amounts_gone(
    base: Snapshot, nodes: Numbers, is_removed: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[Any] | int, ...]:
    """In the order of Amounts, what is not in the new snapshot of old nodes, which are removed or else replaced. The
    latter keep their paths, and their children are removed on their own.
    """
    types = base.types(nodes)
    counts = base.column("counts")[nodes].astype(np.int64)
    is_folder, is_link = types == stat.S_IFDIR, types == stat.S_IFLNK
    return (
        np.where(is_removed, path_lengths_of(base, nodes), 0),
        np.where(is_removed & is_folder, counts, 0),
        np.where(is_folder, 0, counts),
        is_link,
        np.where(is_link, base.column("sizes")[nodes], 0),
    )


def path_lengths_of(snapshot: Snapshot, nodes: Numbers) -> Numbers:
    """In bytes: shape (n,)."""
    ends = snapshot.column("path_ends")
    return ends[nodes].astype(np.int64) - np.where(nodes > 0, ends[nodes - 1], 0).astype(np.int64)
