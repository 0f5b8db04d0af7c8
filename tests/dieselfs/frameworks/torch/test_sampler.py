"""Samplers under real loaders: what workers fetch ahead is not consumed, and their number may change at any step."""

from collections.abc import Iterable

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from dieselfs.errors import InvalidInput
from dieselfs.frameworks.torch.sampler import ChunkShuffleBatchSampler, ChunkShuffleSampler
from tests.support.shuffled_folder import ShuffledFolder

SAMPLES = 203
FOLDER = ShuffledFolder(SAMPLES)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
]


def loader_over(sampler: ChunkShuffleBatchSampler, workers: int) -> DataLoader[int]:
    return DataLoader(FOLDER, batch_sampler=sampler, num_workers=workers)


def flat(batches: Iterable[torch.Tensor]) -> list[int]:
    return [int(index) for batch in batches for index in batch]


def whole_epoch(seed: int, epoch: int) -> list[int]:
    sampler = ChunkShuffleBatchSampler(FOLDER, SAMPLES, seed=seed, group_chunks=3, rank=0, world=1)
    sampler.set_epoch(epoch)
    return flat(map(torch.tensor, sampler))


def test_batches_of_the_ranks_are_the_steps() -> None:
    expected = whole_epoch(1, 0)
    ranks = [
        list(ChunkShuffleBatchSampler(FOLDER, 16, seed=1, group_chunks=3, rank=rank, world=3))
        for rank in range(3)
    ]
    for step, parts in enumerate(zip(*ranks, strict=True)):
        assert [index for part in parts for index in part] == expected[16 * step : 16 * step + 16]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_samples_one_by_one_are_the_same_batches() -> None:
    for rank in range(4):
        batches = ChunkShuffleBatchSampler(FOLDER, 16, rank=rank, world=4)
        samples = ChunkShuffleSampler(FOLDER, 16, rank=rank, world=4)
        loader = DataLoader(FOLDER, batch_size=4, sampler=samples)
        found = [batch.tolist() for batch in samples.consumed(loader)]
        assert found == list(batches)
        assert (len(loader), len(samples)) == (len(found), sum(map(len, found))) and len(batches) == len(
            found
        )
        assert (samples.epoch, samples.position) == (1, 0)


def test_two_epochs_as_a_training_program_runs_them() -> None:
    sampler = ChunkShuffleBatchSampler(FOLDER, 16, seed=5, group_chunks=3, rank=0, world=1)
    loader = loader_over(sampler, workers=2)
    assert len(loader) == 13
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert flat(sampler.consumed(loader)) == whole_epoch(5, epoch)


def test_workers_may_change_at_any_step_and_every_sample_is_read_once() -> None:
    """From none to eight to three workers, from one rank to three; in each job, workers have fetched far ahead."""
    state: dict[str, str] | None = None
    served: list[int] = []
    for workers, world, steps in ((0, 1, 3), (8, 1, 4), (3, 3, 2), (2, 2, None)):
        states = []
        for rank in range(world):
            sampler = ChunkShuffleBatchSampler(FOLDER, 17, seed=2, group_chunks=3, rank=rank, world=world)
            if state is not None:
                sampler.load_state_dict(state)
            batches = sampler.consumed(loader_over(sampler, workers))
            for number, batch in enumerate(batches, start=1):
                served += batch.tolist()
                if number == steps:
                    break
            states.append(sampler.state_dict())
        assert states == [states[0]] * world
        state = states[0]
    assert sorted(served) == list(range(SAMPLES))
    assert served[: 7 * 17] == whole_epoch(2, 0)[: 7 * 17]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_batched", [False, True])
def test_a_stateful_loader_resumes_behind_the_last_batch_that_it_gave(workers: int, is_batched: bool) -> None:
    def loader() -> StatefulDataLoader[int]:
        if is_batched:
            batches = ChunkShuffleBatchSampler(FOLDER, 10, seed=3, group_chunks=3, rank=0, world=1)
            return StatefulDataLoader(FOLDER, batch_sampler=batches, num_workers=workers)
        samples = ChunkShuffleSampler(FOLDER, 10, seed=3, group_chunks=3, rank=0, world=1)
        return StatefulDataLoader(FOLDER, batch_size=10, sampler=samples, num_workers=workers)

    first = loader()
    batches = iter(first)
    found = flat(next(batches) for _ in range(5))
    state = first.state_dict()
    again = loader()
    again.load_state_dict(state)
    assert found + flat(again) == whole_epoch(3, 0)


def test_a_loader_with_other_batches_than_the_samplers_steps_is_refused() -> None:
    sampler = ChunkShuffleSampler(FOLDER, 16, rank=0, world=2)
    with pytest.raises(InvalidInput, match="batches of 16, the sampler steps of 8"):
        sampler.consumed(DataLoader(FOLDER, batch_size=16, sampler=sampler))
    samples = iter(sampler)
    next(samples)
    with pytest.raises(InvalidInput, match="not the sampler's steps"):
        samples.state_dict()


def test_what_samples_one_by_one_cannot_do() -> None:
    with pytest.raises(InvalidInput, match="3 ranks cannot share 16 samples evenly"):
        ChunkShuffleSampler(FOLDER, 16, rank=0, world=3)
    with pytest.raises(InvalidInput, match="3 samples are left for 4 ranks"):
        ChunkShuffleSampler(FOLDER, 20, rank=0, world=4)
    assert len(ChunkShuffleSampler(FOLDER, 20, rank=0, world=4, drop_last=True)) == 50
    sampler = ChunkShuffleSampler(FOLDER, 10, rank=0, world=1)
    list(zip(range(2), sampler.consumed(DataLoader(FOLDER, batch_size=10, sampler=sampler)), strict=False))
    with pytest.raises(InvalidInput, match="inside a step of 16: use ChunkShuffleBatchSampler"):
        ChunkShuffleSampler(FOLDER, 16, rank=0, world=1).load_state_dict(sampler.state_dict())
