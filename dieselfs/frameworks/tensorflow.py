"""Batches of an order as a `tf.data.Dataset` (docs/guide/frameworks.md). No I/O of its own."""

from typing import Any

import numpy as np

from dieselfs.samples.sample_set import read_items
from dieselfs.samples.sampler_state import SamplerState

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        f"dieselfs.tensorflow needs TensorFlow ({error}): in a checkout: pip install '.[tensorflow]'"
    ) from None

READS_AT_ONCE = 4
"""Batches that are read at the same time."""


def dataset(samples: Any, sampler: SamplerState, output_signature: Any, reads: int = READS_AT_ONCE) -> Any:
    """The batches of the sampler's epoch, from its position on, in order: a `tf.data.Dataset`.

    `samples`: what the sampler orders (`FolderSamples`, ...); `output_signature`: the structure of a batch, as
    `tf.TensorSpec`s with the batch as their first dimension. Items have the same structure without it, and are stacked.

    There are two ways to keep the position. `sampler.consumed(dataset)` counts batches, and `sampler.state_dict()` is a
    cursor for any number of ranks. Or the iterator of the dataset is saved with `tf.train.Checkpoint`: it continues
    exactly, in a dataset that was made in the same way, from the same position, rank and number of ranks.

    Raises InvalidInput. Errors of reading are raised by the iterator as `tf.errors.UnknownError` with their text.
    """
    batches = [np.array(indices, np.int64) for _, indices in sampler.listed_steps()]
    flat_signature = tf.nest.flatten(output_signature)

    def read(number: Any) -> list[Any]:
        items = read_items(samples, batches[int(number)].tolist())
        columns = zip(*(tf.nest.flatten(item) for item in items), strict=True)
        return [
            np.stack([np.asarray(value) for value in column]).astype(spec.dtype.as_numpy_dtype)
            for column, spec in zip(columns, flat_signature, strict=True)
        ]

    def batch(number: Any) -> Any:
        dtypes = [spec.dtype for spec in flat_signature]
        # Not stateful, for its result depends on the number alone; so iterators can be saved.
        columns = tf.numpy_function(read, [number], dtypes, stateful=False)
        for column, spec in zip(columns, flat_signature, strict=True):
            column.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(output_signature, columns)

    return tf.data.Dataset.range(len(batches)).map(batch, num_parallel_calls=reads, deterministic=True)
