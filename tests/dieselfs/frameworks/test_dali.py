"""The external source under a stand-in for DALI's pipeline, which reads ahead. tests/dieselfs/test_frameworks_page.py
tries it with DALI.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
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
    """As DALI's with `cycle="raise"`: it fills its queue before the first batch is out. With `resets`, it fills it for
    the next epoch before it reports the end of this one, as with `auto_reset`.
    """

    def __init__(self, source: Any, resets: bool) -> None:
        self.source, self.resets = source, resets
        self._batches: Iterator[Any] | None = None
        self._queue = deque[Any]()

    def _fill(self) -> None:
        self._batches = self._batches or iter(self.source)
        self._queue.extend(islice(self._batches, AHEAD - len(self._queue)))

    def __iter__(self) -> Iterator[Any]:
        self._fill()
        while self._queue:
            yield self._queue.popleft()
            self._fill()
        self._batches = None
        if self.resets:
            self._fill()


@pytest.fixture
def samples(tmp_path: Path) -> FolderSamples:
    return FolderSamples(write_classes(tmp_path), loader=bytes, extensions=None)


@pytest.mark.parametrize("resets", [True, False])
def test_epochs_and_a_resume_in_the_middle(samples: FolderSamples, resets: bool) -> None:
    def pipeline(sampler: SamplerState) -> Pipeline:
        return Pipeline(BatchSource(samples, sampler), resets)

    def read(sampler: SamplerState, of: Pipeline, steps: int = 99) -> list[int]:
        found = []
        for number, (contents, labels) in enumerate(sampler.consumed(of), 1):
            assert all(content.dtype == "uint8" for content in contents)
            found += [number_of(content.tobytes()) for content in contents]
            assert [label.tolist() for label in labels] == [[one % 2] for one in found[-len(labels) :]]
            if number == steps:
                break
        return found

    sampler = SamplerState(samples, 6, seed=2, rank=0, world=1)
    of = pipeline(sampler)
    epochs = [read(sampler, of) for _ in range(3)]
    assert sampler.epoch == 3
    assert all(sorted(found) == list(range(FILES)) for found in epochs)
    assert epochs[0] != epochs[1] != epochs[2]

    sampler = SamplerState(samples, 6, seed=2, rank=0, world=1)
    found = read(sampler, pipeline(sampler), 2)
    again = SamplerState(samples, 6, rank=0, world=1)
    again.load_state_dict(sampler.state_dict())
    of = pipeline(again)
    assert found + read(again, of) == epochs[0]
    assert again.epoch == 1 and read(again, of) == epochs[1]


def test_items_must_have_the_same_entries(samples: FolderSamples) -> None:
    ragged = [(1,) * (1 + index % 2) for index in range(FILES)]
    with pytest.raises(InvalidInput, match="items have 1 or 2 entries"):
        list(BatchSource(ragged, SamplerState(samples, 6, rank=0, world=1)))
