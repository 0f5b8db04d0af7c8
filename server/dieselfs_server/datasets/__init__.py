"""Whole datasets: catalog, commits, snapshots and tags."""
