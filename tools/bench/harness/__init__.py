"""What all benchmarks use: data to measure on, readers, clocks, and the output of figures."""
