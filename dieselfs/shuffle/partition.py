"""The partition of an epoch's positions among ranks and workers. No I/O.

Position p belongs to step p // batch, whatever the number of readers and their start. In each step the ranks take
consecutive slices whose lengths differ by at most one. So any number of ranks, changed at any position, takes every
position exactly once, without padding. A local assignment (`assignment.py`) reorders the positions of a step
before it is cut into slices.
"""

from functools import lru_cache

import numpy as np

from dieselfs.arrays import Numbers, Positions, distinct
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.assignment import HomesOf, local_order, node_numbers
from dieselfs.shuffle.spec import ReaderSpec

_BLOCK_POSITIONS = 1 << 14
"""Steps with about this many positions are assigned together. It takes milliseconds, also of a mount's event loop."""
_BLOCKS_KEPT = 2


class Partition:
    """The positions that one worker of one rank reads, in reading order, which is ascending.

    `reader.start` is the first position that any rank reads. If it is inside a step, that step is short: its remaining
    positions are split among the ranks as in any other step. The last step is short likewise, unless `drop_last` leaves
    it out. A step with fewer positions than ranks gives some of them nothing. The workers of a rank take steps in turn,
    the first by worker 0, as PyTorch's DataLoader distributes batches.
    """

    def __init__(self, total: int, reader: ReaderSpec, homes_of: HomesOf | None = None) -> None:
        """`total`: number of positions. `homes_of`: for a reader with `nodes`. Raises InvalidInput if `reader` starts
        after them.
        """
        start, batch, workers = reader.start, reader.batch or reader.world, reader.workers
        if start > total:
            raise InvalidInput(f"start is {start}: give a position from 0 to {total}")
        self.reader = reader
        self.rank, self.world, self.batch, self.start = reader.rank, reader.world, batch, start
        self.end = max(total - total % batch, start) if reader.drop_last else total
        """The end of the positions that any rank reads."""
        steps_end = -(-self.end // batch) if self.end > start else 0
        self.steps = range(start // batch + reader.worker, steps_end, workers)
        """The numbers of the steps that this worker reads, counted in the epoch."""
        self._homes_of = homes_of if reader.nodes and self.world > 1 else None
        self._rank_nodes = node_numbers(reader.nodes, self.world) if self._homes_of else None
        self._block_steps = max(_BLOCK_POSITIONS // batch, 1)
        self._block = lru_cache(_BLOCKS_KEPT)(self._assigned)

        whole = self.steps
        self._head = self._tail = range(self.end, self.end)
        if whole and whole[0] * batch < start:
            self._head, whole = self._slice(whole[0]), whole[1:]
        if whole and (whole[-1] + 1) * batch > self.end:
            self._tail, whole = self._slice(whole[-1]), whole[:-1]
        # All other steps are whole and alike: `_width` positions, `_stride` after those of the previous one.
        first = self._slice(whole[0]) if whole else range(0)
        self._first, self._width, self._stride = first.start, len(first), batch * workers
        self._body = len(whole) * self._width

    def __len__(self) -> int:
        """Number of positions that this worker reads."""
        return len(self._head) + self._body + len(self._tail)

    def positions_of(self, step: int) -> list[int]:
        """The positions of a step that this rank takes; there may be none."""
        mine = np.array(self._slice(step), np.int64)
        positions: list[int] = self.at(mine).tolist()
        return positions

    def _slice(self, step: int) -> range:
        first, end = self._bounds(step)
        size = end - first
        return range(first + self.rank * size // self.world, first + (self.rank + 1) * size // self.world)

    def _bounds(self, step: int) -> tuple[int, int]:
        """The positions of a step, of all ranks."""
        first = max(step * self.batch, self.start)
        return first, max(min((step + 1) * self.batch, self.end), first)

    def step_ends(self, joins_short: bool = True) -> list[int]:
        """The end position of each step. With `joins_short`, a first or last step with fewer positions than ranks is
        joined with its neighbour, so all ranks have the same number of steps.
        """
        ends = [min((step + 1) * self.batch, self.end) for step in self.steps]
        if joins_short:
            if len(ends) > 1 and ends[0] - self.start < self.world:
                del ends[0]
            if len(ends) > 1 and ends[-1] - ends[-2] < self.world:
                del ends[-2]
        return ends

    def positions(self, first: int = 0, end: int | None = None) -> Positions:
        """The positions number `first` up to but not `end` of this worker (default: all): shape (n,)."""
        first, end, _ = slice(first, end).indices(len(self))
        end = max(first, end)
        head, body, width = len(self._head), self._body, max(self._width, 1)
        low, high = (min(max(each - head, 0), body) for each in (first, end))
        steps = np.arange(low // width, -(-high // width))
        whole = (self._first + self._stride * steps)[:, np.newaxis] + np.arange(width)
        begin, last = (max(each - head - body, 0) for each in (first, end))
        places = np.concatenate(
            [
                np.array(self._head[first:end], np.int64),
                whole.reshape(-1)[low % width :][: high - low],
                np.array(self._tail[begin:last], np.int64),
            ]
        )
        return self.at(places)

    def between(self, first: int, end: int) -> Positions:
        """The positions of this worker from `first` up to but not `end`: shape (n,)."""
        if self._homes_of is None:
            return self.positions(self.count_before(first), self.count_before(end))
        steps = self.batch * (first // self.batch), self.batch * -(-end // self.batch)
        found = self.positions(*map(self.count_before, steps))
        return found[slice(*np.searchsorted(found, (first, end)))]

    def count_before(self, position: int) -> int:
        """How many of this worker's positions are before `position`; in a local assignment, the end of a step."""
        head, tail = (min(max(position - part.start, 0), len(part)) for part in (self._head, self._tail))
        step, within = divmod(max(position - self._first, 0), self._stride)
        return head + min(step * self._width + min(within, self._width), self._body) + tail

    # -- local assignment --------------------------------------------------------------------------------

    def at(self, places: Positions) -> Positions:
        """The positions at places of the epoch, each step of which lists its positions in the order of ranks."""
        if self._homes_of is None:
            return places
        blocks = places // self.batch // self._block_steps
        found = np.empty_like(places)
        for block in distinct(blocks).tolist():
            first, assigned = self._block(block)
            is_here = blocks == block
            found[is_here] = assigned[places[is_here] - first]
        return found

    def _assigned(self, block: int) -> tuple[int, Numbers]:
        """The first position of a block of steps, and all its positions in the order of ranks."""
        assert self._homes_of is not None and self._rank_nodes is not None
        steps = range(
            block * self._block_steps, min((block + 1) * self._block_steps, -(-self.end // self.batch))
        )
        bounds = [bounds for bounds in map(self._bounds, steps) if bounds[0] < bounds[1]]
        sizes = np.array([end - first for first, end in bounds], np.int64)
        first = bounds[0][0]
        homes = self._homes_of(np.arange(first, bounds[-1][1]))
        return first, first + local_order(homes, sizes, self._rank_nodes)
