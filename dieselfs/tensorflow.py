"""The name by which programs import `dieselfs.frameworks.tensorflow`. No I/O of its own."""

from dieselfs.frameworks.tensorflow import READS_AT_ONCE, dataset

__all__ = ["READS_AT_ONCE", "dataset"]
