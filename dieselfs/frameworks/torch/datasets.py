"""The datasets of `dieselfs.samples` as PyTorch's: sums, subsets and type checks work. No I/O of its own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.samples.base_names import PairSamples
from dieselfs.samples.class_folders import FolderSamples
from dieselfs.samples.file_lists import FileSamples
from dieselfs.samples.mixture import MixedSamples, Mixture
from dieselfs.samples.order import Ordered
from dieselfs.samples.tokens import TokenSamples
from dieselfs.samples.view import ViewSamples


class FolderDataset(FolderSamples, Dataset[tuple[Any, Any]]):
    __doc__ = (FolderSamples.__doc__ or "").replace("FolderSamples", "FolderDataset")


class FileDataset(FileSamples, Dataset[Any]):
    __doc__ = (FileSamples.__doc__ or "").replace("FileSamples", "FileDataset")


class PairDataset(PairSamples, Dataset[Any]):
    __doc__ = (PairSamples.__doc__ or "").replace("PairSamples", "PairDataset")


class DatasetView(ViewSamples, Dataset[Any]):
    __doc__ = ViewSamples.__doc__


class TokenDataset(TokenSamples, Dataset[Any]):
    __doc__ = (
        (TokenSamples.__doc__ or "")
        .replace("TokenSamples", "TokenDataset")
        .replace("int64 array", "int64 tensor")
    )

    @staticmethod
    def _made(rows: Numbers) -> torch.Tensor:
        return torch.from_numpy(rows)


class MixedDataset(MixedSamples, Dataset[Any]):
    """Several datasets in one order with one cursor, each as often as its weight says.

        MixedDataset([web, books], weights=[0.7, 0.3], epoch_samples=1_000_000)

    Index i is that of `torch.utils.data.ConcatDataset`. A sampler reads the datasets in proportion to the weights;
    without weights, each sample once per epoch. A dataset begins its next pass, in another order, when all its samples
    have been read, and continues in the next epoch where it was. Closes its datasets when it is closed.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float] | None = None,
        epoch_samples: int | None = None,
    ) -> None:
        """`datasets`: of this module, or subsets of them. `epoch_samples`: samples of an epoch, by default as many as
        there are. Raises InvalidInput.
        """
        super().__init__(datasets, weights, epoch_samples, [ordered(dataset) for dataset in datasets])


def ordered(dataset: object) -> Ordered:
    """The dataset as samplers use it: itself, the part of it that a `Subset` takes, or all of a `ConcatDataset`.

    Raises InvalidInput for a dataset that does not say which files its samples have.
    """
    if isinstance(dataset, Ordered):
        return dataset
    if isinstance(dataset, Subset):
        return ordered(dataset.dataset).subset(dataset.indices)
    if isinstance(dataset, ConcatDataset):
        return Mixture([ordered(part) for part in dataset.datasets])
    raise InvalidInput(
        f"the sampler does not know which files a {type(dataset).__name__} reads: wrap it as "
        "DatasetView(dataset, root, files)"
    )
