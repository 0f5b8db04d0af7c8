"""Datasets and samplers for PyTorch, over the library or over a mount (docs/guide/training.md).

dataset = FolderDataset("imagenet/train", transform)
sampler = ChunkShuffleBatchSampler(dataset, batch_size=1024, seed=1)
loader = DataLoader(dataset, batch_sampler=sampler, num_workers=8)
"""

try:
    import torch.utils.data  # noqa: F401  # only a check that it is installed
except ImportError as error:
    raise ImportError(
        f"dieselfs.torch needs PyTorch ({error}): in a checkout: pip install '.[torch]'"
    ) from None

from dieselfs.frameworks.torch.datasets import (
    DatasetView,
    FileDataset,
    FolderDataset,
    MixedDataset,
    PairDataset,
    TokenDataset,
)
from dieselfs.frameworks.torch.importance import ImportanceSampler
from dieselfs.frameworks.torch.sampler import (
    ChunkShuffleBatchSampler,
    ChunkShuffleSampler,
    OpportunisticSampler,
)
from dieselfs.frameworks.torch.stream import BatchStream
from dieselfs.frameworks.torch.tensors import as_tensors
from dieselfs.samples.loading import IMAGE_EXTENSIONS, load_image

__all__ = [
    "IMAGE_EXTENSIONS",
    "BatchStream",
    "ChunkShuffleBatchSampler",
    "ChunkShuffleSampler",
    "DatasetView",
    "FileDataset",
    "FolderDataset",
    "ImportanceSampler",
    "MixedDataset",
    "OpportunisticSampler",
    "PairDataset",
    "TokenDataset",
    "as_tensors",
    "load_image",
]
