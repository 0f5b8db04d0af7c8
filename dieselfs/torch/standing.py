"""Where training stands in the order of its samples: which epoch, and which steps of it were consumed. No I/O.

An epoch is a `dieselfs.shuffle.plan.Plan` over the folder of the samples; a step takes the next `batch_size` of its
positions, for all ranks together. What a rank reads is arithmetic on positions, so a job that goes on with another
number of ranks or workers reads every sample exactly once all the same.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from dieselfs.errors import InvalidInput
from dieselfs.meta.snapshot import Snapshot
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS, Layout
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.skips import Skips
from dieselfs.torch.ranks import rank_and_world
from dieselfs.torch.samples import Samples

Batch = TypeVar("Batch")


class Shuffled(Protocol):
    """What is needed of a `FolderDataset`."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def folder(self) -> bytes: ...

    @property
    def samples(self) -> Samples: ...

    def expect_plan(self) -> None:
        """All batches will come in the order of a plan."""
        ...

    def declare(self, share: Share) -> None:
        """Somebody begins to read this share."""
        ...


class Standing:
    """What both samplers have in common. Not to be pickled; one loader at a time may use it.

    A batch counts as consumed when `consumed` hands it to the training loop, or when the loop says so by `advance`;
    what the workers of a loader have fetched ahead does not count.
    """

    def __init__(
        self,
        dataset: Shuffled,
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
        other, 0 for all. `rank` and `world`: see `rank_and_world`. `drop_last` leaves out a short last step. `skips`:
        for an epoch, positions of its whole order to leave out.

        Raises InvalidInput.
        """
        self.dataset = dataset
        self.rank, self.world = rank_and_world(rank, world)
        self.batch_size, self.drop_last = batch_size, drop_last
        self._layout = Layout.of(dataset.snapshot, dataset.folder)
        self._index_by_node = dataset.samples.index_by_node(len(dataset.snapshot))
        self._skips = {epoch: Skips(ranges) for epoch, ranges in (skips or {}).items()}
        self._plan = Plan(dataset.snapshot, seed, 0, group_chunks, self._skips.get(0, ()), self._layout)
        self._position = 0
        self._ends: deque[int] = (
            deque()
        )  # behind each step that a loader has taken and nobody counted, oldest first
        self.share(0)  # raises for numbers that cannot be
        self.check_start(0)
        dataset.expect_plan()  # before it travels to workers

    @property
    def plan(self) -> Plan:
        """The order of the present epoch."""
        return self._plan

    @property
    def epoch(self) -> int:
        return self._plan.epoch

    @property
    def position(self) -> int:
        """How many positions of the plan were consumed, on all ranks together."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch. The present one is left as it is, so that one that was resumed goes on."""
        if epoch != self.epoch:
            self._plan = self._plan.with_epoch(epoch, self._skips.get(epoch, ()))
            self._position = 0

    def consumed(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader over this sampler, to its end; each counts as consumed when it is handed out.

        So a checkpoint is made after a batch was trained on and before the next one. Behind the last batch the next
        epoch begins.
        """
        for batch in loader:
            self.advance()
            yield batch
        self.set_epoch(self.epoch + 1)

    def advance(self) -> None:
        """Training has the loader's next batch. Raises InvalidInput if the loader has asked for no further one."""
        if not self._ends:
            raise InvalidInput("every batch that was taken from this sampler has been counted already")
        self._position = self._ends.popleft()

    def state_dict(self) -> dict[str, str]:
        """Where training stands, after the same step the same on all ranks: a cursor, about 100 characters."""
        return {"cursor": str(self._plan.cursor(self._position))}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Go on where a state was taken, in its order, with the ranks and the batch size of now.

        What this sampler is told to skip is left out besides. Raises InvalidInput if the state is of another
        generation of the dataset, or of another folder.
        """
        cursor = Cursor.parse(state["cursor"])
        before = Plan.at(self.dataset.snapshot, cursor, self._layout)
        skips = Skips([*before.skips.ranges, *self._skips.get(before.epoch, Skips()).ranges])
        self._skips[before.epoch] = skips
        self._plan = before.with_epoch(before.epoch, skips)
        self._position = int(skips.left_before(before.skips.whole(cursor.position)))
        self.check_start(self._position)

    def check_start(self, position: int) -> None:
        """Raises InvalidInput if steps cannot begin at a position of the present epoch."""
        if self.batch_size < self.world:
            raise InvalidInput(f"{self.batch_size} samples a step are too few for {self.world} ranks")

    def share(self, start: int) -> Share:
        """What this rank reads of the epoch from a position on."""
        return self._plan.share(self.rank, self.world, self.batch_size, start, drop_last=self.drop_last)

    def step_ends(self, share: Share) -> list[int]:
        """The position behind each step. A first or last one of fewer positions than ranks is one with its neighbour,
        so that all ranks have the same number of batches; only in all fewer positions than ranks leave some with none.
        """
        ends = [min((step + 1) * share.batch, share.end) for step in share.steps]
        if len(ends) > 1 and ends[0] - share.start < share.world:
            del ends[0]
        if len(ends) > 1 and ends[-1] - ends[-2] < share.world:
            del ends[-2]
        return ends

    def steps(self, start: int) -> Iterator[tuple[int, list[int]]]:
        """The steps of this rank from a position on: the position behind each, and the indices of its samples.

        Asking for the first declares what will be read; whatever was taken before and not counted is forgotten.
        Raises InvalidInput if one of several ranks finds nothing but files that are no samples in a step: it could not
        keep in step with the others.
        """
        self.check_start(start)
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
                    f"before position {end}, rank {self.rank} has nothing but files that are no samples: "
                    "store these in another folder, or take a larger batch"
                )
            if found:
                self._ends.append(end)
                yield end, found
