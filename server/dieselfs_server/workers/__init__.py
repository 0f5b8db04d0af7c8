"""One server in several processes: a parent accepts connections, and workers answer them."""
