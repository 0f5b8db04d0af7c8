"""The memory of a node: budget, chunk caches, buffers, and warming."""
