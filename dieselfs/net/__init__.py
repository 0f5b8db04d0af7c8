"""Addresses, sockets and proofs of identity: what a connection needs before the first call."""
