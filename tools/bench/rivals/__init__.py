"""File systems over a network beside dieselfs: the hosts, each rival, and what is read from them."""
