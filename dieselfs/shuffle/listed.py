"""A list of files as an order, or as a plan: for orders that no spec gives, and for draws by importance. No I/O."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, Positions, distinct
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.policies import LISTED
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot

FIRST_GROUP_BYTES, GROUP_BYTES = 16 << 20, 64 << 20
"""Size of a group, in bytes of its files. A reader waits for the first. The larger a group, the fewer requests fetch
its files: they are in fewer different chunks, in proportion.
"""

_OF_LISTS = PlanSpec(policy=LISTED)


class ListedOrder:
    """A `GroupOrder` whose groups are stretches of a list."""

    def __init__(
        self,
        snapshot: Snapshot,
        nodes: Numbers,
        first_bytes: int = FIRST_GROUP_BYTES,
        group_bytes: int = GROUP_BYTES,
        is_of_extents: bool = False,
    ) -> None:
        """`nodes`: shape (n,), files of the snapshot in the order in which they are read; one may come again.
        `is_of_extents`: they are the numbers of extents instead.
        """
        self._nodes = nodes.astype(np.uint64)
        sizes = snapshot.column("extent_lengths" if is_of_extents else "sizes")
        self._count, ends = len(sizes), np.cumsum(sizes[nodes], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        cuts = np.searchsorted(ends, np.arange(first_bytes, total, group_bytes), side="right")
        self.bounds: Positions = distinct(np.concatenate(([0], cuts, [len(nodes)]))).astype(np.int64)

    def nodes(self, first_group: int, end_group: int) -> npt.NDArray[Any]:
        return self._nodes[self.bounds[first_group] : self.bounds[end_group]]

    def nodes_at(self, group: int, places: Numbers) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._nodes[self.bounds[group] + places]
        return found

    @cached_property
    def _is_single(self) -> npt.NDArray[np.bool_]:
        counts = np.bincount(self._nodes.astype(np.int64), minlength=self._count)
        is_single: npt.NDArray[np.bool_] = counts == 1
        return is_single

    def is_single(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        return self._is_single[nodes]


class ListedPlan(Plan):
    """The plan of a list. It has no layout and no cursor: it lives in one process. Its positions are those of their
    ranks already, so a local assignment changes nothing.
    """

    is_assigned = True

    def __init__(
        self,
        snapshot: Snapshot,
        nodes: Numbers,
        first_bytes: int = FIRST_GROUP_BYTES,
        group_bytes: int = GROUP_BYTES,
        is_of_extents: bool = False,
        spec: PlanSpec = _OF_LISTS,
    ) -> None:
        """See `ListedOrder`. `spec`: without skips."""
        self.is_of_extents = is_of_extents
        self.snapshot, self.spec, self.skips = snapshot, spec, NO_SKIPS
        self._arrange(ListedOrder(snapshot, nodes, first_bytes, group_bytes, is_of_extents))
