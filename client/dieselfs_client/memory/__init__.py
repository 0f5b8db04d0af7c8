"""What a node holds in memory: the budget, chunk caches, buffers, and how they are warmed."""
