"""Benchmarks of jobs on several nodes, beside their rivals and beside predictions."""
