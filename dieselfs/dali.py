"""The name by which programs import `dieselfs.frameworks.dali`. No I/O of its own."""

from dieselfs.frameworks.dali import BatchSource

__all__ = ["BatchSource"]
