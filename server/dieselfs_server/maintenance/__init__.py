"""Maintenance of datasets: fsck, purge, rebuild."""
