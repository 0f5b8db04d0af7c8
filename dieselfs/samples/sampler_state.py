"""The state of a sampler: the epoch, and the steps of it that were consumed. No I/O.

A step takes the next `batch_size` positions of the epoch's order, for all ranks together. The part of a rank is
arithmetic on positions. So a job that resumes with another number of ranks or workers still reads every sample exactly
once.
"""

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypedDict, TypeVar

import numpy as np

from dieselfs.errors import InvalidInput
from dieselfs.samples.order import Ordered, SampleOrder
from dieselfs.samples.ranks import EVEN, LOCAL, rank_and_world, rank_nodes
from dieselfs.samples.reading_list import announce
from dieselfs.samples.worker_times import WorkerTimes
from dieselfs.shuffle.assignment import LOCAL_GROUP_CHUNKS
from dieselfs.shuffle.cursor import REPLAY_VARIABLE, Cursor
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.skips import NO_SKIPS, Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.telemetry.stalls import Stalls

Batch = TypeVar("Batch")

UNEVEN_STEPS = ("join", "pad", "uneven")
"""What happens with steps that the ranks cannot share evenly; see `SamplerState`."""


class SamplerOptions(TypedDict, total=False):
    """The options of all samplers."""

    seed: int
    group_chunks: int | None
    """Chunks that are mixed with each other, 0 for all; None for groups that grow."""
    rank: int | None
    world: int | None
    """See `rank_and_world`."""
    drop_last: bool
    """Leave out a short last step."""
    uneven_steps: str
    """`join`, `pad` or `uneven`; see `SamplerState`."""
    assignment: str | Sequence[str]
    """`even`, `local`, or the nodes of the ranks; see `SamplerState`."""
    skips: Mapping[int, Iterable[range]] | None
    """By epoch, positions of its whole order to leave out."""


class SamplerState:
    """The common part of all samplers. One loader at a time may use it; it pickles if its dataset does.

    A batch counts as consumed when `consumed` yields it to the training loop, or when the loop calls `advance`. Batches
    that the workers of a loader have prefetched do not count.

    `uneven_steps` says what happens with a step whose samples the ranks cannot share evenly:

    - `join`: the parts of ranks differ by one sample. A first or last step with fewer samples than ranks is joined with
      its neighbour, so all ranks have the same number of batches.
    - `pad`: samples of the step are repeated, so that all parts have the same length. Only here samples are repeated.
    - `uneven`: as `join`, but no step is joined. Some ranks may have one batch less than others, as in a validation
      without communication, or with PyTorch's `Join`.

    `assignment` says which rank reads which sample of a step. `even`: the next ones. `local`: those that its node owns
    in the cache of the job, as far as the counts allow (docs/reference/order.md). The steps are the same. A sequence of
    node names in the order of ranks is `local` among these; see `ranks.rank_nodes`. The default group is then
    LOCAL_GROUP_CHUNKS.
    """

    def __init__(
        self,
        dataset: Ordered,
        batch_size: int,
        *,
        seed: int = 0,
        group_chunks: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = False,
        uneven_steps: str = "join",
        assignment: str | Sequence[str] = EVEN,
        skips: Mapping[int, Iterable[range]] | None = None,
    ) -> None:
        """`batch_size`: samples of one step, of all ranks together. The options: see `SamplerOptions`.

        Raises InvalidInput.
        """
        if uneven_steps not in UNEVEN_STEPS:
            raise InvalidInput(f"uneven_steps is {uneven_steps!r}: give one of {', '.join(UNEVEN_STEPS)}")
        self.dataset = dataset
        self.rank, self.world = rank_and_world(rank, world)
        self.batch_size, self.drop_last, self.uneven_steps = batch_size, drop_last, uneven_steps
        self.nodes = rank_nodes(assignment, self.world, job_node(dataset) if assignment == LOCAL else None)
        """The nodes of the ranks in a local assignment."""
        if self.nodes and group_chunks is None:
            group_chunks = LOCAL_GROUP_CHUNKS
        self._skips = {epoch: Skips(ranges) for epoch, ranges in (skips or {}).items()}
        self.order: SampleOrder = dataset.order(PlanSpec(seed, 0, group_chunks))
        """The order of the current epoch."""
        if skipped := self._skips_of(self.order.spec):
            self.order = self.order.with_spec(replace(self.order.spec, skips=skipped))
        self.position = 0
        """Number of consumed positions of the order, of all ranks together."""
        source = getattr(dataset, "source", None)
        times: WorkerTimes | None = getattr(source, "times", None)
        self.stalls = Stalls(times.spent if times else None, daemon=getattr(source, "daemon_work", None))
        """How long the training waited for the batches of `consumed`, and for what."""
        # End positions of the steps that a loader has taken and that do not yet count as consumed, oldest first.
        self._ends: deque[int] = deque()
        self._is_repeating = False  # the epoch was read to its end, and no other was set
        self._is_warned = False
        self.check_start(0)
        if not self.share(0).end:
            few = f"{len(self.order)} samples are less than a step of {batch_size}, and drop_last leaves them out"
            raise InvalidInput(few if len(self.order) else "the epoch has no samples")
        dataset.expect_plan()  # before the dataset is sent to workers

    @property
    def epoch(self) -> int:
        return self.order.spec.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch. For the current one nothing changes, so a resumed epoch continues."""
        self._is_repeating = False
        if epoch != self.epoch:
            spec = replace(self.order.spec, epoch=epoch)
            self.order = self.order.with_spec(replace(spec, skips=self._skips_of(spec)))
            self.position = 0

    def _skips_of(self, spec: PlanSpec) -> Skips:
        """What this sampler leaves out of an epoch: its own skips, and those of a replay of the same order."""
        skips = self._skips.get(spec.epoch, NO_SKIPS)
        if text := os.environ.get(REPLAY_VARIABLE):
            replayed = Cursor.parse(text)
            order = replace(spec, folder=b"", skips=replayed.spec.skips)
            if order == replayed.spec and self.order.cursor(0).snapshot == replayed.snapshot:
                skips = Skips([*skips.ranges, *replayed.spec.skips.ranges])
        return skips

    def consumed(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader over this sampler; each counts as consumed when it is yielded.

        So checkpoints are made between the training on one batch and the next. After the last batch the next epoch
        starts, unless the loader has started it.
        """
        epoch = self.epoch
        for batch in self.stalls.timed(loader):
            self.advance()
            yield batch
        self.set_epoch(epoch + 1)

    def advance(self) -> None:
        """Count the loader's next batch as consumed. Raises InvalidInput if the loader has taken no further one."""
        if not self._ends:
            raise InvalidInput(
                "advance was called more often than the loader took batches: call it once per batch"
            )
        self.position = self._ends.popleft()

    def state_dict(self) -> dict[str, str]:
        """The state as a cursor, about 100 characters; after the same step it is the same on all ranks."""
        return {"cursor": str(self.order.cursor(self.position))}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Continue from a state, in its order, with the ranks and the batch size of this sampler.

        The skips of this sampler apply in addition. Raises InvalidInput if the state is of another generation of the
        dataset, or of other samples.
        """
        cursor = Cursor.parse(entry_of(state, "cursor"))
        before = self.order.with_spec(cursor.spec)
        before.check_cursor(cursor)
        epoch, skips_before = cursor.spec.epoch, cursor.spec.skips
        skips = Skips([*skips_before.ranges, *self._skips_of(cursor.spec).ranges])
        self._skips[epoch] = skips
        self.order = before.with_spec(replace(cursor.spec, skips=skips))
        self.position = int(skips.left_before(skips_before.whole(cursor.position)))
        self._is_repeating = False
        self.check_start(self.position)

    def check_start(self, position: int) -> None:
        """Raises InvalidInput if steps cannot start at a position of the current epoch."""
        share = self.share(position)  # raises for numbers out of range
        if self.uneven_steps == "uneven" or self.world == 1:
            return
        if self.batch_size < self.world:
            raise InvalidInput(f"{self.batch_size} samples a step are too few for {self.world} ranks")
        if self.uneven_steps == "join" and 0 < (left := share.end - position) < self.world:
            raise InvalidInput(
                f"{left} samples are left in the epoch, too few for {self.world} ranks: start fewer ranks, go to the "
                "next epoch with set_epoch, or choose uneven_steps='pad' or 'uneven'"
            )

    def _reader(self, start: int) -> ReaderSpec:
        return ReaderSpec(
            self.rank, self.world, self.batch_size, start, drop_last=self.drop_last, nodes=self.nodes
        )

    def share(self, start: int) -> Partition:
        """The positions of the epoch that this rank reads from a position on, without padding."""
        reader = self._reader(start)
        return Partition(len(self.order), reader, self.order.homes_of(self.nodes) if self.nodes else None)

    def step_ends(self, share: Partition) -> list[int]:
        """The end position of each step, as `uneven_steps` says."""
        return share.step_ends(joins_short=self.uneven_steps == "join")

    def batch_ends(self, start: int) -> list[int]:
        """The end positions of the steps in which this rank has a batch, from a position on."""
        share = self.share(start)
        ends = self.step_ends(share)
        if self.uneven_steps == "pad":
            return ends
        counts = [0, *map(share.count_before, ends)]
        return [end for end, (before, after) in zip(ends, pairwise(counts), strict=True) if after > before]

    def expect_steps(self) -> None:
        """Expect that other processes take the steps from the current position on, for `consumed` and `advance`."""
        self._ends = deque(self.batch_ends(self.position))

    def steps(
        self, start: int, worker: int = 0, workers: int = 1, is_tracked: bool = False
    ) -> Iterator[tuple[int, list[int]]]:
        """The steps of this rank from a position on: end position and indices of the samples of each.

        The first `next` declares what this rank reads, or of several `workers` this one (each step whose number is
        `worker` modulo `workers`), and drops the steps that were taken before and not consumed. Raises InvalidInput as
        `check_start`. Warns once per sampler if an epoch is read again. `is_tracked`: see `Listed`.
        """
        self.check_start(start)
        if self._is_repeating and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"epoch {self.epoch} is read again, in the same order: call set_epoch before each epoch, or iterate "
                "over consumed(loader)",
                stacklevel=2,
            )
        share = self.share(start)
        progress = self.order.declare(replace(self._reader(start), worker=worker, workers=workers))
        self._ends.clear()
        indices = self.order.indices(share.positions())
        first = 0
        step_start = start
        ends = self.step_ends(share)
        counts = np.array([*map(share.count_before, ends)], np.int64)
        taken = announce(self.dataset, indices, counts, is_tracked, worker, workers)
        if not getattr(self.order, "is_listed", False):
            taken = []  # the order has told how far readers have come
        for number, end in enumerate(ends):
            of_step, first = indices[first : share.count_before(end)].tolist(), share.count_before(end)
            if self.uneven_steps == "pad":
                of_step += self._padding(share, step_start, end, len(of_step))
            if progress is not None and not is_tracked:
                progress(step_start)
            for tell in taken if not is_tracked else ():
                tell(number)
            step_start = end
            if of_step:
                self._ends.append(end)
                yield end, of_step
        self._is_repeating = True

    def listed_steps(self) -> list[tuple[int, list[int]]]:
        """All steps from `position` on, at once, for loaders that take them in their own time. The library then loads
        ahead what follows the last read. Raises as `steps`.
        """
        return [*self.steps(self.position, is_tracked=True)]

    def _padding(self, share: Partition, start: int, end: int, found: int) -> list[int]:
        """The samples that follow those of this rank in its step, and are repeated so that all ranks have as many.
        `start`, `end`: positions of the step; `found`: how many samples the rank has.
        """
        size = end - start
        after = self.rank * size // self.world + found + np.arange(-(-size // self.world) - found)
        if not len(after):
            return []
        padding: list[int] = self.order.indices(share.at(start + after % size)).tolist()
        return padding

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "order": self.order.spec, "_ends": deque()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.order = self.dataset.order(state["order"])


def job_node(dataset: Any) -> str | None:
    """The name of this node in the job in which a dataset is read; None without a job."""
    reads = getattr(dataset, "reads", None)
    sources = [source for source, _, _ in reads(np.zeros(1, np.int64))] if reads is not None else []
    return sources[0].node if sources else None


def entry_of(state: Mapping[str, Any], key: str) -> Any:
    """An entry of a state. Raises InvalidInput if it is missing."""
    if not isinstance(state, Mapping) or key not in state:
        raise InvalidInput(
            f"{state!r} is not a state of a sampler: it has no {key!r}; pass the result of state_dict()"
        )
    return state[key]
