"""The part of one rank in a training under importance sampling, for any framework. No I/O but that of `gather`.

    reader = RankReader(Course(samples=50_000, seed=1, capacity=5_000), batch=256)
    for epoch in range(90):
        reader.set_epoch(epoch)
        for _, samples in reader.steps():
            reader.consume()
            reader.record(train_on(samples))  # one loss for each sample
        reader.note_accuracy(validate())

All ranks take these steps with equal arguments. Samples are numbers from 0.
"""

import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, Positions, distinct
from dieselfs.errors import InvalidInput
from dieselfs.importance.course import Course
from dieselfs.importance.scores import checked_losses
from dieselfs.samples.ranks import Gather, alone
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.spec import ReaderSpec


class RankReader:
    """Steps through the epochs of a course, which belongs to it alone.

    With one rank, a loss counts for the cache at once. Several ranks exchange losses at the end of an epoch, and when
    all of them call `exchange`. In each step their samples are disjoint positions of one order.
    """

    def __init__(
        self,
        course: Course,
        batch: int,
        rank: int = 0,
        world: int = 1,
        *,
        gather: Gather = alone,
        drop_last: bool = False,
    ) -> None:
        """`batch`: samples of a step, of all ranks together. Raises InvalidInput."""
        if batch < world:
            raise InvalidInput(f"{batch} samples a step are too few for {world} ranks")
        if world > 1 and gather is alone:
            raise InvalidInput(f"{world} ranks must exchange losses: pass gather=")
        self.course = course
        self.position = 0
        """Number of consumed positions of the epoch, of all ranks together."""
        self._spec = ReaderSpec(rank, world, batch, drop_last=drop_last)
        self._gather = gather
        # Steps that were handed out, oldest first: the end, and the own positions.
        self._taken: deque[tuple[int, Positions]] = deque()
        self._dropped: list[int] = []  # samples of steps that were handed out and not consumed
        self._current: Positions | None = None  # of the step consumed last, until its losses come

    @property
    def epoch(self) -> int:
        return self.course.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; for the present one nothing changes. Exchanges losses, so all ranks must
        call it. Raises InvalidInput.
        """
        if epoch != self.epoch:
            self.exchange()
            self._forget_taken()
            self.course.set_epoch(epoch)
            self.position, self._current = 0, None

    def steps(self) -> Iterator[tuple[int, list[int]]]:
        """The steps from `position` on: the end position, and the samples of this rank. Steps that were handed out
        before and not consumed are dropped. Raises InvalidInput if the ranks have different orders.
        """
        order = self.course.order.samples
        self._check_equal(order)
        part = self._part(self.position)
        positions, first = part.positions(), 0
        self._forget_taken()
        for end in part.step_ends():
            last = part.count_before(end)
            own, first = positions[first:last], last
            self._taken.append((end, own))
            yield end, order[own].tolist()

    def listed(self) -> tuple[Numbers, Numbers]:
        """The samples of this rank from `position` on, shape (n,), and the end of each step in them, shape (steps,)."""
        part = self._part(self.position)
        ends = np.array([*map(part.count_before, part.step_ends())], np.int64)
        return self.course.order.samples[part.positions()], ends

    def _part(self, start: int) -> Partition:
        spec = self._spec
        return Partition(
            self.course.samples,
            ReaderSpec(spec.rank, spec.world, spec.batch, start, drop_last=spec.drop_last),
        )

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return len(self._part(0).step_ends())

    def _check_equal(self, order: Numbers) -> None:
        if self._spec.world == 1:
            return
        own = self.epoch, self.position, zlib.crc32(order.tobytes())
        found = self._gather(own)
        if len(found) != self._spec.world:
            raise InvalidInput(
                f"{len(found)} ranks exchange losses, not {self._spec.world}: give their number"
            )
        if differing := [rank for rank, of_rank in enumerate(found) if tuple(of_rank) != tuple(found[0])]:
            raise InvalidInput(
                f"rank {differing[0]} has another order than rank 0: give all ranks the same seed, cache, state, epoch "
                "and accuracies"
            )

    def consume(self) -> list[int]:
        """Count the next step as consumed; returns samples that were read and that the cache does not have, without
        those of further steps that were handed out. Raises InvalidInput if no further step was handed out.
        """
        if not self._taken:
            raise InvalidInput("more batches were consumed than were taken: count each batch once")
        end, self._current = self._taken.popleft()
        released = self.course.read(self.position, end)
        self.position = end
        released += [sample for sample in self._dropped if sample not in self.course.cache]
        self._dropped = []
        ahead = {*self._samples_taken()}
        return [sample for sample in released if sample not in ahead]

    def kept(self) -> list[int]:
        """The samples of this rank in the step that was consumed last, as far as the cache has them now."""
        own = [] if self._current is None else self.course.order.samples[self._current].tolist()
        return [sample for sample in own if sample in self.course.cache]

    def _samples_taken(self) -> list[int]:
        order = self.course.order.samples
        return [sample for _, own in self._taken for sample in order[own].tolist()]

    def _forget_taken(self) -> None:
        if self._taken:
            self._dropped += self._samples_taken()
            self._taken.clear()

    def record(self, losses: Any, samples: Any = None) -> None:
        """The losses of the step that was consumed last, or of any samples: both of shape (n,).

        Raises InvalidInput for losses that are not finite, of another number than the samples, or without a step.
        """
        current = self._current
        if samples is None:
            if current is None:
                raise InvalidInput(
                    "there is no batch that these losses are of: record them once for each batch"
                )
            positions, own = current, self.course.order.samples[current]
        else:
            own = np.asarray(samples, np.int64).reshape(-1)
            if len(own) and not (own.min() >= 0 and own.max() < self.course.samples):
                raise InvalidInput(
                    f"there are {self.course.samples} samples, counted from 0, not {own.max()}"
                )
            same = current is not None and len(current) == len(own)
            positions = current if current is not None and same else np.full(len(own), self.position)
        checked = checked_losses(losses, len(own))
        self._current = None
        self.course.record(positions, own, checked)
        if self._spec.world == 1:
            self.course.take([self.course.pending()])

    def loss_weights(self, samples: Any = None) -> npt.NDArray[np.float64]:
        """`Epoch.loss_weights` of these samples, or of those of the step that was consumed last."""
        if samples is None:
            if self._current is None:
                raise InvalidInput(
                    "there is no batch to weigh: ask after it was consumed, before it is recorded"
                )
            samples = self.course.order.samples[self._current]
        return self.course.order.loss_weights(np.asarray(samples, np.int64))

    def statistics(self) -> dict[str, float]:
        """Samples of this epoch read so far, and hits of the cache, of all ranks; different samples of the whole."""
        course = self.course
        different = len(distinct(course.order.samples))
        return {"reads": course.reads, "hits": course.hits, "different": different}

    def exchange(self) -> None:
        """Give all losses to all ranks, which must all call this, after the same step."""
        if self._spec.world > 1:
            self.course.take(self._gather(self.course.pending()))

    def note_accuracy(self, accuracy: float) -> None:
        """The accuracy on validation data, equal on all ranks, before the next epoch begins."""
        self.course.schedule.note_accuracy(accuracy)

    def state(self) -> dict[str, Any]:
        """As `Course.state`, with the position. Raises InvalidInput with losses that were not exchanged."""
        return {**self.course.state(), "position": self.position}

    def load(self, state: Mapping[str, Any]) -> None:
        """As `Course.load`: with any number of ranks and any batch."""
        position = state.get("position")
        if not isinstance(position, int) or not 0 <= position <= self.course.samples:
            raise InvalidInput(f"not a state of an importance sampler: its position is {position!r}")
        self._forget_taken()
        self.course.load(state)
        self.position, self._current = position, None
