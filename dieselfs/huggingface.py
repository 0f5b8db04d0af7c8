"""The name by which programs import `dieselfs.frameworks.huggingface`. No I/O of its own."""

from dieselfs.frameworks.huggingface import iterable_dataset

__all__ = ["iterable_dataset"]
