"""The name by which programs import `dieselfs.frameworks.fsspec`. No I/O of its own."""

from dieselfs.frameworks.fsspec import DieselFileSystem

__all__ = ["DieselFileSystem"]
