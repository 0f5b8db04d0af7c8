"""Reads of chunks for clients, merged into few large reads of the object store."""
