"""Attaching: records of archives become files of a dataset, and their bytes stay where they are."""
