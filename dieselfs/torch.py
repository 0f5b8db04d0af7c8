"""The name by which programs import `dieselfs.frameworks.torch`. No I/O of its own."""

from dieselfs.frameworks.torch import (
    IMAGE_EXTENSIONS,
    BatchStream,
    ChunkShuffleBatchSampler,
    ChunkShuffleSampler,
    DatasetView,
    FileDataset,
    FolderDataset,
    ImportanceSampler,
    MixedDataset,
    PairDataset,
    as_tensors,
    load_image,
)

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
    "PairDataset",
    "as_tensors",
    "load_image",
]
