"""The benchmarks of `make bench`, with the figures of docs/internals/performance.md. Not installed."""
