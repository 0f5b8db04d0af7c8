"""A laboratory: dieselfs on a network of hosts, on one machine; for tests and for benchmarks."""
