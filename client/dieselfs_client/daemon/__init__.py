"""Daemons of a node: how they start, what they serve, and how others find them."""
