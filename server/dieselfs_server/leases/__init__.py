"""Leases, stored as notes of a dataset: pins of readers, members of jobs."""
