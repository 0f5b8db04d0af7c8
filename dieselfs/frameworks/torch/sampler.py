"""Samplers in the order of a plan, or of the memory, for PyTorch's DataLoader and for stateful loaders. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Unpack

from torch.utils.data import Dataset, Sampler

from dieselfs.errors import InvalidInput
from dieselfs.frameworks.torch.datasets import ordered
from dieselfs.samples.opportunistic import OpportunisticState
from dieselfs.samples.order import Ordered
from dieselfs.samples.sampler_state import Batch, SamplerOptions, SamplerState, entry_of


class Batches(Iterator[list[int]]):
    """The batches of a rank in one epoch. Loaders such as torchdata's keep its state for each batch."""

    def __init__(self, sampler_state: SamplerState) -> None:
        self._sampler_state = sampler_state
        self._position = sampler_state.position
        self._steps = sampler_state.steps(self._position)

    def __next__(self) -> list[int]:
        self._position, indices = next(self._steps)
        return indices

    def state_dict(self) -> dict[str, int]:
        """The position after the last batch."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._position = int(entry_of(state, "position"))
        self._steps = self._sampler_state.steps(self._position)


class Indices(Iterator[int]):
    """The samples of a rank, one by one."""

    def __init__(self, sampler_state: SamplerState) -> None:
        self._batches = Batches(sampler_state)
        self._left: list[int] = []

    def __next__(self) -> int:
        if not self._left:
            self._left = next(self._batches)[::-1]
        return self._left.pop()

    def state_dict(self) -> dict[str, int]:
        """As `Batches`. Raises InvalidInput in the middle of a step."""
        if self._left:
            raise InvalidInput(
                "the loader's batches are not the sampler's steps: its batch_size must be batch_size // world"
            )
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._batches.load_state_dict(state)
        self._left = []


class TorchSampler(SamplerState):
    """`SamplerState` of PyTorch's datasets, also of a `Subset` and a `ConcatDataset` of ours."""

    def __init__(
        self, dataset: Ordered | Dataset[Any], batch_size: int, **options: Unpack[SamplerOptions]
    ) -> None:
        """As `SamplerState`. Raises InvalidInput."""
        super().__init__(ordered(dataset), batch_size, **options)


class ChunkShuffleBatchSampler(TorchSampler, Sampler[list[int]]):
    """A rank's batches: `DataLoader(dataset, batch_sampler=ChunkShuffleBatchSampler(dataset, 256))`.

    Each rank takes a slice of each step; for any number of ranks, the lengths of the slices differ by at most one.
    """

    def __iter__(self) -> Batches:
        return Batches(self)

    def __len__(self) -> int:
        """Batches of a whole epoch, whatever the start position."""
        return len(self.batch_ends(0))


class OpportunisticSampler(OpportunisticState, ChunkShuffleBatchSampler):
    """A rank's batches in an order that follows the memory of all nodes of a job:
    `DataLoader(dataset, batch_sampler=OpportunisticSampler(dataset, 256))`.
    """


class ChunkShuffleSampler(TorchSampler, Sampler[int]):
    """A rank's samples one by one, for loaders that make the batches:
    `DataLoader(dataset, batch_size=256 // world, sampler=ChunkShuffleSampler(dataset, 256))`.

    Those batches must be the sampler's steps. So this raises InvalidInput for a `batch_size` that is not a multiple of
    the ranks, a last step with fewer samples than ranks, and a state in the middle of a step (after a change of the
    batch size). ChunkShuffleBatchSampler supports them all.
    """

    def check_start(self, position: int) -> None:
        super().check_start(position)
        left = 0 if self.drop_last else len(self.order) % self.batch_size
        if self.batch_size % self.world:
            raise InvalidInput(
                f"{self.world} ranks cannot share {self.batch_size} samples evenly: {_INSTEAD}"
            )
        if position % self.batch_size:
            raise InvalidInput(f"position {position} lies inside a step of {self.batch_size}: {_INSTEAD}")
        if 0 < left < self.world and self.uneven_steps == "join":
            raise InvalidInput(
                f"{left} samples are left for {self.world} ranks: drop_last=True, or {_INSTEAD}"
            )

    def consumed(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        size = getattr(loader, "batch_size", None)
        if size not in (None, self.batch_size // self.world):
            of_step = self.batch_size // self.world
            raise InvalidInput(
                f"the loader makes batches of {size}, the sampler steps of {of_step} for each rank"
            )
        return super().consumed(loader)

    def __iter__(self) -> Indices:
        return Indices(self)

    def __len__(self) -> int:
        """Samples of a whole epoch, whatever the start position."""
        if self.uneven_steps != "pad":
            return len(self.share(0))
        total = self.share(0).end
        return total // self.batch_size * (self.batch_size // self.world) - (
            -(total % self.batch_size) // self.world
        )


_INSTEAD = "use ChunkShuffleBatchSampler"
