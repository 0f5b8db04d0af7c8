"""`dlcmd`, the demonstration, and the benchmarks: what people type."""
