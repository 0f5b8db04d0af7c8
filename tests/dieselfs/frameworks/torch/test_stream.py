"""Streams under real loaders: batches come in the sampler's order, and any number of workers resumes any other."""

from collections.abc import Iterable

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from dieselfs.errors import InvalidInput
from dieselfs.torch import BatchStream, ChunkShuffleBatchSampler
from tests.support.shuffled_folder import ShuffledFolder

SAMPLES = 103
FOLDER = ShuffledFolder(SAMPLES)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]


def stream(batch_size: int = 10, rank: int = 0, world: int = 1, seed: int = 2) -> BatchStream:
    return BatchStream(FOLDER, batch_size, seed=seed, group_chunks=3, rank=rank, world=world)


def loader_over(
    one: BatchStream, workers: int, method: str | None = None, is_kept: bool = False
) -> "DataLoader[torch.Tensor]":
    return DataLoader(
        one, batch_size=None, num_workers=workers, multiprocessing_context=method, persistent_workers=is_kept
    )


def lists(batches: Iterable[torch.Tensor]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def expected(epoch: int, batch_size: int = 10) -> list[list[int]]:
    sampler = ChunkShuffleBatchSampler(FOLDER, batch_size, seed=2, group_chunks=3, rank=0, world=1)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize(
    ("workers", "method", "is_kept"),
    [(0, None, False), (1, "fork", False), (3, "fork", True), (1, "spawn", True)],
)
def test_epochs_as_a_training_program_runs_them(workers: int, method: str | None, is_kept: bool) -> None:
    one = stream()
    loader = loader_over(one, workers, method, is_kept)
    assert len(loader) == len(one) == 11
    for epoch in (0, 1, 4):
        one.set_epoch(epoch)
        assert lists(one.consumed(loader)) == expected(epoch)
        assert one.epoch == epoch + 1


def test_workers_and_ranks_may_change_at_any_step() -> None:
    state: dict[str, str] | None = None
    served: list[int] = []
    for workers, world, steps in ((0, 1, 2), (3, 1, 3), (2, 2, 2), (1, 1, None)):
        states = []
        for rank in range(world):
            one = stream(rank=rank, world=world, seed=2 if state is None else 9)
            if state is not None:
                one.load_state_dict(state)
            for number, batch in enumerate(one.consumed(loader_over(one, workers)), start=1):
                served += batch.tolist()
                if number == steps:
                    break
            states.append(one.state_dict())
        assert states == [states[0]] * world
        state = states[0]
    assert sorted(served) == list(range(SAMPLES))


def test_a_loader_that_is_kept_starts_where_a_state_says() -> None:
    one = stream()
    loader = loader_over(one, 2, is_kept=True)
    batches = one.consumed(loader)
    assert lists(next(batches) for _ in range(3)) == expected(0)[:3]
    state = one.state_dict()
    assert lists(batches) == expected(0)[3:]
    one.load_state_dict(state)
    assert lists(one.consumed(loader)) == expected(0)[3:]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_behind_the_last_batch_that_it_gave(workers: int) -> None:
    first = StatefulDataLoader(stream(), batch_size=None, num_workers=workers)
    batches = iter(first)
    found = lists(next(batches) for _ in range(5))
    again = StatefulDataLoader(stream(seed=9), batch_size=None, num_workers=workers)
    again.load_state_dict(first.state_dict())
    assert found + lists(again) == expected(0)


def test_batches_of_items_that_are_no_tensors() -> None:
    one = BatchStream(FOLDER, 10, seed=2, group_chunks=3, rank=0, world=1, collate_fn=list)
    assert list(DataLoader(one, batch_size=None)) == expected(0)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a state of a sampler"):
        stream().load_state_dict({})
    other = BatchStream(ShuffledFolder(20), 10, rank=0, world=1)
    with pytest.raises(InvalidInput, match="of snapshot"):
        stream().load_state_dict(other.state_dict())
