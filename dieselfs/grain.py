"""The name by which programs import `dieselfs.frameworks.grain`. No I/O of its own."""

from dieselfs.frameworks.grain import OrderSampler

__all__ = ["OrderSampler"]
