"""Grain's loader over an order. Runs where grain is installed."""

from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.samples.class_folders import FolderSamples
from dieselfs.samples.sampler_state import SamplerState
from tests.support.plain_folder import FILES, array_of, write_classes

grain = pytest.importorskip("grain.python", reason="grain is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of grain


@pytest.fixture
def samples(tmp_path: Path) -> FolderSamples:
    return FolderSamples(write_classes(tmp_path), loader=array_of, extensions=None)


def loader(samples: FolderSamples, epochs: int = 2, shard: int = 0, shards: int = 1, workers: int = 0) -> Any:
    from dieselfs.grain import OrderSampler

    return grain.DataLoader(
        data_source=samples,
        sampler=OrderSampler(samples, epochs, seed=2),
        shard_options=grain.ShardOptions(shard, shards),
        worker_count=workers,
        operations=[grain.Batch(5)],
    )


def flat(batches: Any) -> list[int]:
    return [int(number) for images, _ in batches for number in images[:, 0]]


def test_epochs_in_the_order_of_a_sampler(samples: FolderSamples) -> None:
    expected = []
    for epoch in range(2):
        sampler = SamplerState(samples, 5, seed=2, rank=0, world=1)
        sampler.set_epoch(epoch)
        expected += [int(samples[index][0][0]) for _, step in sampler.steps(0) for index in step]
    assert flat(loader(samples)) == expected
    assert sorted(expected) == sorted([*range(FILES)] * 2)
    shards = [flat(loader(samples, shard=shard, shards=2)) for shard in range(2)]
    assert sorted(shards[0] + shards[1]) == sorted(expected)


def test_a_state_of_grain_continues(samples: FolderSamples) -> None:
    whole = flat(loader(samples))
    batches = iter(loader(samples))
    found = flat(next(batches) for _ in range(5))
    again = iter(loader(samples))
    again.set_state(batches.get_state())
    assert found + flat(again) == whole
    other = iter(loader(samples, epochs=3))
    with pytest.raises(ValueError, match="OrderSampler"):
        other.set_state(batches.get_state())


def test_records_of_the_sampler(samples: FolderSamples) -> None:
    from dieselfs.grain import OrderSampler

    sampler = OrderSampler(samples, 2, seed=2)
    assert len(sampler) == 2 * FILES
    assert sampler[3].rng.integers(1 << 30) == sampler[3].rng.integers(1 << 30)
    state = SamplerState(samples, 5, rank=0, world=1)
    state.load_state_dict({"cursor": str(sampler.cursor(FILES + 7))})
    assert (state.epoch, state.position) == (1, 7)
    sampler.declare(FILES + 7)
    with pytest.raises(IndexError):
        sampler[2 * FILES]
    with pytest.raises(InvalidInput, match="epochs is 0"):
        OrderSampler(samples, 0)
