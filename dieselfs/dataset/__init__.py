"""The library: a dataset as an object, and its files."""

from dieselfs.dataset.dataset import Dataset, connect

__all__ = ["Dataset", "connect"]
