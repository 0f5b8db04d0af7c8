"""A daemon's role in the memory pool of its job: membership, election, peers, and the processes of its node."""
