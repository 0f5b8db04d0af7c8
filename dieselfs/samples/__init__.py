"""Samples made of files, in the orders of plans, for every framework; `dieselfs.torch` has them for PyTorch."""
