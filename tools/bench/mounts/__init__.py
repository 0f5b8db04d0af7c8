"""Benchmarks of mounts, and of programs and loaders that read data once it is stored."""
