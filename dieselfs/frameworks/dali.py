"""Batches of an order for the external source of NVIDIA DALI (docs/guide/frameworks.md). No I/O of its own.

Nothing here imports DALI: an external source is any iterable of batches.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.samples.sample_set import read_items
from dieselfs.samples.sampler_state import SamplerState


class BatchSource:
    """The batches of the sampler's epoch, from its position on, each time that it is iterated; after the last one of
    the epoch, those of the next epoch, because DALI's iterators begin it (`auto_reset`) before they report the end.

        jpegs, labels = fn.external_source(
            source=BatchSource(samples, sampler), num_outputs=2, batch=True, cycle="raise"
        )

    An item is a tuple with one entry for each output: bytes, numbers or arrays. Bytes become arrays of `uint8`, as the
    decoders of DALI take them, so use `loader=bytes`. Count what is trained on with `sampler.consumed(iterator)`: the
    pipeline reads ahead.
    """

    def __init__(self, samples: Any, sampler: SamplerState) -> None:
        self.samples, self.sampler = samples, sampler
        self._epoch: int | None = None  # that was iterated last

    def __iter__(self) -> Iterator[tuple[list[npt.NDArray[Any]], ...]]:
        """Raises InvalidInput for items with different numbers of entries, DieselfsError."""
        sampler = self.sampler
        if sampler.epoch == self._epoch and not sampler.batch_ends(sampler.position):
            sampler.set_epoch(sampler.epoch + 1)
        self._epoch = sampler.epoch
        for _, indices in sampler.steps(sampler.position):
            items = [
                item if isinstance(item, tuple) else (item,) for item in read_items(self.samples, indices)
            ]
            if len(widths := {len(item) for item in items}) > 1:
                raise InvalidInput(
                    f"items have {' or '.join(map(str, sorted(widths)))} entries: DALI needs equal ones"
                )
            yield tuple([_array(value) for value in column] for column in zip(*items, strict=True))


def _array(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    return np.atleast_1d(np.asarray(value))
