"""The snapshot: the metadata of one generation of a dataset, in one mapped file."""
