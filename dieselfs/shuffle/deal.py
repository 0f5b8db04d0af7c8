"""How the positions of an epoch are dealt out to ranks and workers: arithmetic alone. No I/O.

Position p belongs to step p // batch, whoever reads and wherever they start. In each step the ranks take slices
that follow one another and differ in length by at most one. So any number of ranks, changed at any position, takes
every position exactly once, without padding.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.limits import BATCH_FILES_MAX, RANKS_MAX, WORKERS_MAX

Numbers = npt.NDArray[np.int64]


class Deal:
    """The positions that one worker of one rank reads, in the order in which it reads them.

    `batch` counts the files of one step, of all ranks together; None: one for each rank. `start` is the first
    position that anybody reads. If it lies inside a step, that step is short: its positions from `start` on are
    split among the ranks as those of any other step. So is the last one, unless `drop_last` leaves it out. A
    step of fewer positions than ranks gives some of them nothing. Steps go to the workers of a rank in turn, the
    first to worker 0, as PyTorch's DataLoader deals out batches.
    """

    def __init__(
        self,
        total: int,
        *,
        rank: int = 0,
        world: int = 1,
        batch: int | None = None,
        start: int = 0,
        worker: int = 0,
        workers: int = 1,
        drop_last: bool = False,
    ) -> None:
        """`total` positions are to be dealt. Raises InvalidInput for numbers that do not fit together."""
        _check("rank", rank, "ranks", world, RANKS_MAX)
        _check("worker", worker, "workers", workers, WORKERS_MAX)
        batch = world if batch is None else batch
        if not 1 <= batch <= BATCH_FILES_MAX:
            raise InvalidInput(f"a batch of {batch} files cannot be: a step has 1 to {BATCH_FILES_MAX}")
        if not 0 <= start <= total:
            raise InvalidInput(f"cannot start at position {start}: positions go from 0 to {total}")
        self.rank, self.world, self.batch, self.start = rank, world, batch, start
        self.end = max(total - total % batch, start) if drop_last else total
        """Behind the last position that anybody reads."""
        self.steps = range(start // batch + worker, -(-self.end // batch) if self.end > start else 0, workers)
        """The steps that this worker reads, by their numbers in the epoch."""

        whole = self.steps
        self._head = self._tail = range(self.end, self.end)
        if whole and whole[0] * batch < start:
            self._head, whole = self.positions_of(whole[0]), whole[1:]
        if whole and (whole[-1] + 1) * batch > self.end:
            self._tail, whole = self.positions_of(whole[-1]), whole[:-1]
        # All other steps are whole, and look alike: `_width` positions, `_stride` after those of the one before.
        piece = self.positions_of(whole[0]) if whole else range(0)
        self._first, self._width, self._stride = piece.start, len(piece), batch * workers
        self._body = len(whole) * self._width

    def __len__(self) -> int:
        """Number of positions that this worker reads."""
        return len(self._head) + self._body + len(self._tail)

    def positions_of(self, step: int) -> range:
        """The slice of a step that this rank takes; it may be empty."""
        first = max(step * self.batch, self.start)
        size = max(min((step + 1) * self.batch, self.end) - first, 0)
        return range(first + self.rank * size // self.world, first + (self.rank + 1) * size // self.world)

    def batches(self) -> Iterator[range]:
        """The positions of each of `steps`; those of short steps may be empty."""
        return map(self.positions_of, self.steps)

    def positions(self, first: int = 0, end: int | None = None) -> Numbers:
        """The positions that this worker reads first-th, up to but not end-th (default: to the last)."""
        first, end, _ = slice(first, end).indices(len(self))
        index = np.arange(first, end, dtype=np.int64)
        in_body = index - len(self._head)
        in_tail = in_body - self._body
        step, within = np.divmod(in_body, max(self._width, 1))
        return np.select(
            [in_body < 0, in_tail >= 0],
            [self._head.start + index, self._tail.start + in_tail],
            self._first + step * self._stride + within,
        )

    def count_before(self, position: int) -> int:
        """How many of this worker's positions come before `position`: what it has read when the job is there."""
        head, tail = (min(max(position - part.start, 0), len(part)) for part in (self._head, self._tail))
        step, within = divmod(max(position - self._first, 0), self._stride)
        return head + min(step * self._width + min(within, self._width), self._body) + tail


def _check(name: str, number: int, several: str, count: int, count_max: int) -> None:
    if not 1 <= count <= count_max or not 0 <= number < count:
        raise InvalidInput(
            f"{name} {number} of {count}: there are 1 to {count_max} {several}, and they are counted from 0"
        )
