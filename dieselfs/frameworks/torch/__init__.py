"""The parts of `dieselfs.torch`: datasets and samplers for PyTorch."""
