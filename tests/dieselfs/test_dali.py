"""The external source under a stand-in for DALI's pipeline, which reads ahead. DALI itself needs a GPU."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs.dali import BatchSource
from dieselfs.errors import InvalidInput
from dieselfs.samples.class_folders import FolderSamples
from dieselfs.samples.sampler_state import SamplerState
from tests.support.plain_folder import FILES, number_of, write_classes

AHEAD = 3


class Pipeline:
    """As DALI's with `cycle="raise"`: it fills its queue before the first batch is out, and iterates the source again
    after a reset.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        batches, queue = iter(self.source), deque[Any]()
        for batch in batches:
            queue.append(batch)
            if len(queue) > AHEAD:
                yield queue.popleft()
        yield from queue


@pytest.fixture
def samples(tmp_path: Path) -> FolderSamples:
    return FolderSamples(write_classes(tmp_path), loader=bytes, extensions=None)


def test_epochs_and_a_resume_in_the_middle(samples: FolderSamples) -> None:
    def read(sampler: SamplerState, steps: int) -> list[int]:
        found = []
        for number, (contents, labels) in enumerate(
            sampler.consumed(Pipeline(BatchSource(samples, sampler))), 1
        ):
            assert all(content.dtype == "uint8" for content in contents)
            found += [number_of(content.tobytes()) for content in contents]
            assert [label.tolist() for label in labels] == [[one % 2] for one in found[-len(labels) :]]
            if number == steps:
                break
        return found

    whole = read(SamplerState(samples, 6, seed=2, rank=0, world=1), 99)
    assert sorted(whole) == list(range(FILES))
    sampler = SamplerState(samples, 6, seed=2, rank=0, world=1)
    found = read(sampler, 2)
    again = SamplerState(samples, 6, rank=0, world=1)
    again.load_state_dict(sampler.state_dict())
    assert found + read(again, 99) == whole
    assert again.epoch == 1 and sorted(read(again, 99)) == sorted(whole)


def test_items_must_have_the_same_entries(samples: FolderSamples) -> None:
    ragged = [(1,) * (1 + index % 2) for index in range(FILES)]
    with pytest.raises(InvalidInput, match="items have 1 or 2 entries"):
        list(BatchSource(ragged, SamplerState(samples, 6, rank=0, world=1)))
