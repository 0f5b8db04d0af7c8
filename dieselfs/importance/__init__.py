"""Importance sampling after SHADE: scores, orders of epochs, and the cache that belongs to them. No I/O, no PyTorch."""
