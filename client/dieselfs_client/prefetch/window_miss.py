"""Detects a reader that has overtaken its window, from the files that it reads through the daemon. No I/O.

Such a reader reads no tripwire, as none is set beyond the window. But it reads later files of the plan, about in the
plan's order, which does not happen by chance.
"""

from dataclasses import dataclass, field

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.shuffle.plan import Plan

READS_MIN = 16
"""This many files, each about at the position of the one before or later, are no chance."""
LAG_SHARE = 16
"""One process of a reader may lag behind another by the two groups' files divided by this."""


@dataclass(eq=False, slots=True)
class WindowMiss:
    """For one reader of a plan. Knows the group that `ahead` lies in, and the next one."""

    plan: Plan
    _ahead: int = -1
    _nodes: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    _positions: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    _furthest: int = -1
    _reads: int = 0

    def reset(self) -> None:
        """The reader has read a tripwire."""
        self._reads = 0

    def noticed(self, node: int, ahead: int) -> int | None:
        """A file was read through the daemon, while the window ends at `ahead`. Returns the position of the reader,
        once that is clear.
        """
        if ahead >= len(self.plan):
            return None
        if ahead != self._ahead:
            self._look_ahead(ahead)
        place = int(np.searchsorted(self._nodes, node))
        if place == len(self._nodes) or self._nodes[place] != node:
            return None
        position = int(self._positions[place])
        self._reads = self._reads + 1 if position + len(self._nodes) // LAG_SHARE >= self._furthest else 1
        self._furthest = max(position, self._furthest) if self._reads > 1 else position
        return position if self._reads >= READS_MIN else None

    def _look_ahead(self, ahead: int) -> None:
        bounds = self.plan.group_bounds()
        group = self.plan.group_of(ahead)
        end = int(bounds[min(group + 2, len(bounds) - 1)])
        nodes = self.plan.nodes(ahead, end).astype(np.int64)
        order = np.argsort(nodes)
        self._ahead, self._nodes, self._positions = ahead, nodes[order], ahead + order
        self._reads = 0
