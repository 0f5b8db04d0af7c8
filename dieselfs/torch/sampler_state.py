"""The state of a sampler: the epoch, and the steps of it that were consumed. No I/O.

An epoch is a `dieselfs.shuffle.plan.Plan` over the folder of the samples; a step takes the next `batch_size` of its
positions, for all ranks together. The part of a rank is arithmetic on positions. So a job that resumes with another
number of ranks or workers still reads every sample exactly once.
"""

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import torch.distributed

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.skips import NO_SKIPS, Skips
from dieselfs.shuffle.spec import DEFAULT_GROUP_CHUNKS, PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.torch.samples import Samples

Batch = TypeVar("Batch")


class ShuffledOrder(Protocol):
    """The part of `FolderDataset` that samplers use."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def folder(self) -> bytes: ...

    @property
    def columns(self) -> Samples: ...

    def expect_plan(self) -> None:
        """Announce that all reads follow a plan."""
        ...

    def declare(self, share: Share) -> None:
        """Announce that reading of this share starts."""
        ...


class SamplerState:
    """The common part of both samplers. Cannot be pickled; one loader at a time may use it.

    A batch counts as consumed when `consumed` yields it to the training loop, or when the loop calls `advance`. Batches
    that the workers of a loader have prefetched do not count.
    """

    def __init__(
        self,
        dataset: ShuffledOrder,
        batch_size: int,
        *,
        seed: int = 0,
        group_chunks: int = DEFAULT_GROUP_CHUNKS,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = False,
        skips: Mapping[int, Iterable[range]] | None = None,
    ) -> None:
        """`batch_size`: samples of one step, of all ranks together. `group_chunks`: chunks that are mixed with each
        other, 0 for all. `rank` and `world`: see `rank_and_world`. `drop_last`: leave out a short last step. `skips`:
        by epoch, positions of its whole order to leave out.

        Raises InvalidInput.
        """
        if not hasattr(dataset, "declare"):
            raise InvalidInput(
                f"the sampler needs a FolderDataset, not a {type(dataset).__name__}: to train on a part of one, open a "
                "sub-folder, or pass skips"
            )
        self.dataset = dataset
        self.rank, self.world = rank_and_world(rank, world)
        self.batch_size, self.drop_last = batch_size, drop_last
        self._index_by_node = dataset.columns.index_by_node(len(dataset.snapshot))
        self._skips = {epoch: Skips(ranges) for epoch, ranges in (skips or {}).items()}
        skips_now = self._skips.get(0, NO_SKIPS)
        self.plan = Plan(dataset.snapshot, PlanSpec(seed, 0, group_chunks, skips_now, dataset.folder))
        """The order of the current epoch."""
        self.position = 0
        """Number of consumed positions of the plan, of all ranks together."""
        # End positions of the steps that a loader has taken and that do not yet count as consumed, oldest first.
        self._ends: deque[int] = deque()
        self._is_repeating = False  # the epoch was read to its end, and no other was set
        self._is_warned = False
        self.share(0)  # raises for numbers out of range
        self.check_start(0)
        dataset.expect_plan()  # before the dataset is sent to workers

    @property
    def epoch(self) -> int:
        return self.plan.spec.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch. For the current one nothing changes, so a resumed epoch continues."""
        self._is_repeating = False
        if epoch != self.epoch:
            self.plan = self.plan.with_epoch(epoch, self._skips.get(epoch, ()))
            self.position = 0

    def consumed(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader over this sampler; each counts as consumed when it is yielded.

        So checkpoints are made between the training on one batch and the next. After the last batch the next epoch
        starts.
        """
        for batch in loader:
            self.advance()
            yield batch
        self.set_epoch(self.epoch + 1)

    def advance(self) -> None:
        """Count the loader's next batch as consumed. Raises InvalidInput if the loader has taken no further one."""
        if not self._ends:
            raise InvalidInput(
                "advance was called more often than the loader took batches: call it once per batch"
            )
        self.position = self._ends.popleft()

    def state_dict(self) -> dict[str, str]:
        """The state as a cursor, about 100 characters; after the same step it is the same on all ranks."""
        return {"cursor": str(self.plan.cursor(self.position))}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Continue from a state, in its order, with the ranks and the batch size of this sampler.

        The skips of this sampler apply in addition. Raises InvalidInput if the state is of another generation of the
        dataset, or of another folder.
        """
        cursor = Cursor.parse(entry_of(state, "cursor"))
        before = Plan.at(self.dataset.snapshot, cursor, self.plan.layout)
        epoch = cursor.spec.epoch
        skips = Skips([*before.skips.ranges, *self._skips.get(epoch, NO_SKIPS).ranges])
        self._skips[epoch] = skips
        self.plan = before.with_epoch(epoch, skips)
        self.position = int(skips.left_before(before.skips.whole(cursor.position)))
        self.check_start(self.position)

    def check_start(self, position: int) -> None:
        """Raises InvalidInput if steps cannot start at a position of the current epoch."""
        if self.batch_size < self.world:
            raise InvalidInput(f"{self.batch_size} samples a step are too few for {self.world} ranks")

    def share(self, start: int) -> Share:
        """The part of the epoch that this rank reads from a position on."""
        return self.plan.share(self.rank, self.world, self.batch_size, start, drop_last=self.drop_last)

    def step_ends(self, share: Share) -> list[int]:
        """The end position of each step. A first or last step with fewer positions than ranks is joined with its
        neighbour, so all ranks have the same number of batches, unless the epoch has fewer positions than ranks.
        """
        ends = [min((step + 1) * share.batch, share.end) for step in share.steps]
        if len(ends) > 1 and ends[0] - share.start < share.world:
            del ends[0]
        if len(ends) > 1 and ends[-1] - ends[-2] < share.world:
            del ends[-2]
        return ends

    def steps(self, start: int) -> Iterator[tuple[int, list[int]]]:
        """The steps of this rank from a position on: end position and indices of the samples of each.

        The first `next` declares the share, and drops the steps that were taken before and not consumed. Raises
        InvalidInput if one of several ranks has no sample in a step, because the ranks would have different numbers of
        batches. Warns once per sampler if an epoch is read again.
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
        self.dataset.declare(share)
        self._ends.clear()
        indices = self._index_by_node[share.nodes()]
        first = 0
        for end in self.step_ends(share):
            of_step, first = indices[first : share.count_before(end)], share.count_before(end)
            found = of_step[of_step >= 0].tolist()
            if len(of_step) and not found and self.world > 1:
                raise InvalidInput(
                    f"the step before position {end} has no samples for rank {self.rank}, only other files: "
                    "store these in another folder, or use a larger batch"
                )
            if found:
                self._ends.append(end)
                yield end, found
        self._is_repeating = True


def entry_of(state: Mapping[str, Any], key: str) -> Any:
    """An entry of a state. Raises InvalidInput if it is missing."""
    if not isinstance(state, Mapping) or key not in state:
        raise InvalidInput(
            f"{state!r} is not a state of a sampler: it has no {key!r}; pass the result of state_dict()"
        )
    return state[key]


def rank_and_world(
    rank: int | None = None, world: int | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int]:
    """`(rank, world)`: as given, else of the process group of torch.distributed, else of the variables of torchrun
    (`RANK`, `WORLD_SIZE`), else (0, 1).

    Raises InvalidInput if only one of the two is given, or a variable is not a number.
    """
    if rank is not None and world is not None:
        return rank, world
    if rank is not None or world is not None:
        raise InvalidInput("give both rank and world, or neither")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    except ValueError:
        raise InvalidInput(
            "RANK and WORLD_SIZE in the environment must be numbers, as torchrun sets them"
        ) from None
