"""A list of files as a plan, for orders that no spec gives: mixtures, and draws by importance. No I/O."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, Positions
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot

FIRST_GROUP_BYTES, GROUP_BYTES = 16 << 20, 64 << 20
"""Of the files of a group. A reader waits for the first one. The larger a group, the fewer requests fetch it: its files
are those of fewer different chunks, in proportion.
"""


class ListedOrder:
    """As `Order`. `nodes`: shape (n,), in order; a file may come several times. `sizes`: of each of them."""

    def __init__(self, nodes: Numbers, sizes: Numbers, first_bytes: int, group_bytes: int) -> None:
        self._nodes = nodes.astype(np.uint64)
        ends = np.cumsum(sizes, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        cuts = np.searchsorted(ends, np.arange(first_bytes, total, group_bytes), side="right")
        self.bounds: Positions = np.unique(np.concatenate(([0], cuts, [len(nodes)]))).astype(np.int64)

    def nodes(self, first_group: int, end_group: int) -> npt.NDArray[Any]:
        return self._nodes[self.bounds[first_group] : self.bounds[end_group]]

    def nodes_at(self, group: int, places: Numbers) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._nodes[self.bounds[group] + places]
        return found


class ListedPlan(Plan):
    """The plan of a list; its groups are stretches of it. It has no layout and no cursor: it lives in one process."""

    def __init__(
        self,
        snapshot: Snapshot,
        nodes: Numbers,
        first_bytes: int = FIRST_GROUP_BYTES,
        group_bytes: int = GROUP_BYTES,
        spec: PlanSpec | None = None,
    ) -> None:
        """`nodes`: shape (n,), files of the snapshot in the order in which they are read. `spec`: what the list was
        made of.
        """
        self.snapshot, self.spec, self.skips = snapshot, spec or PlanSpec(), NO_SKIPS
        self._listed = nodes
        self._arrange(ListedOrder(nodes, snapshot.column("sizes")[nodes], first_bytes, group_bytes))

    @cached_property
    def _is_single(self) -> npt.NDArray[np.bool_]:
        is_single: npt.NDArray[np.bool_] = np.bincount(self._listed, minlength=len(self.snapshot)) == 1
        return is_single

    def is_single(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        return self._is_single[nodes]
