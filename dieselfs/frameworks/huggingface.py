"""Samples in an order as an `IterableDataset` of Hugging Face `datasets` (docs/guide/frameworks.md). No I/O."""

from collections.abc import Iterator, Sequence
from typing import Any

from dieselfs.errors import InvalidInput
from dieselfs.samples.sample_set import read_items
from dieselfs.samples.sampler_state import SamplerState

try:
    import datasets
except ImportError as error:
    raise ImportError(
        f"dieselfs.huggingface needs Hugging Face datasets ({error}): in a checkout: pip install '.[huggingface]'"
    ) from None


def iterable_dataset(
    samples: Any, sampler: SamplerState, columns: Sequence[str] = ("image", "label"), features: Any = None
) -> Any:
    """The samples of this rank in the sampler's epoch, from its position on: a `datasets.IterableDataset`.

    `columns`: names of the entries of items that are tuples; items that are dictionaries keep their names. `features`:
    a `datasets.Features`; else they are inferred.

    Each step of the sampler is a shard, so the workers of a `DataLoader` share the steps, and `state_dict` of the
    dataset continues exactly after the last sample; only files of its step are read again. `sampler.state_dict()` does
    not count here. Raises InvalidInput.
    """
    steps = [indices for _, indices in sampler.listed_steps()]
    if not steps:
        raise InvalidInput(
            f"epoch {sampler.epoch} has no step after position {sampler.position}: call set_epoch"
        )
    arguments = {"steps": steps, "samples": samples, "columns": tuple(columns)}
    return datasets.IterableDataset.from_generator(_examples, features=features, gen_kwargs=arguments)


def _examples(steps: list[list[int]], samples: Any, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for indices in steps:
        for item in read_items(samples, indices):
            yield item if isinstance(item, dict) else _named(item, columns)


def _named(item: Any, columns: tuple[str, ...]) -> dict[str, Any]:
    values = item if isinstance(item, tuple) else (item,)
    if len(values) != len(columns):
        raise InvalidInput(f"items have {len(values)} entries, but columns are {', '.join(columns)}")
    return dict(zip(columns, values, strict=True))
