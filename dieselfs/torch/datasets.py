"""The datasets of `dieselfs.samples` as PyTorch's: sums, subsets and type checks work. No I/O of its own."""

from typing import Any

from torch.utils.data import Dataset, Subset

from dieselfs.errors import InvalidInput
from dieselfs.samples.base_names import PairSamples
from dieselfs.samples.class_folders import FolderSamples
from dieselfs.samples.file_lists import FileSamples
from dieselfs.samples.order import Ordered


class FolderDataset(FolderSamples, Dataset[tuple[Any, Any]]):
    __doc__ = (FolderSamples.__doc__ or "").replace("FolderSamples", "FolderDataset")


class FileDataset(FileSamples, Dataset[Any]):
    __doc__ = (FileSamples.__doc__ or "").replace("FileSamples", "FileDataset")


class PairDataset(PairSamples, Dataset[Any]):
    __doc__ = (PairSamples.__doc__ or "").replace("PairSamples", "PairDataset")


def ordered(dataset: object) -> Ordered:
    """The dataset as samplers use it: itself, or the part of it that a `Subset` takes.

    Raises InvalidInput for a dataset that does not say which files its samples have.
    """
    if isinstance(dataset, Ordered):
        return dataset
    if isinstance(dataset, Subset):
        return ordered(dataset.dataset).subset(dataset.indices)
    raise InvalidInput(
        f"the sampler does not know which files a {type(dataset).__name__} reads: wrap it as "
        "DatasetView(dataset, root, files)"
    )
