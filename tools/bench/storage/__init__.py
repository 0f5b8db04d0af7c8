"""Benchmarks of uploads, metadata, stores and requests to servers."""
