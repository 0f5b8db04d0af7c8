"""The figures of docs/performance.md: what `make bench` runs. Not part of what is installed."""
