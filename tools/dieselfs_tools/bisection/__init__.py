"""Finds the files behind a loss spike."""
