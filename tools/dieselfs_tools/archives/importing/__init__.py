"""Readers of other formats, for `dlcmd import`."""
