"""The figures of docs/internals/performance.md: what `make bench` runs. Not part of what is installed."""
