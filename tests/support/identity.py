"""An identity of servers, the same in each run."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dieselfs_server.access.identity import Identity


def identity_of(seed: bytes) -> Identity:
    return Identity(seed, Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


IDENTITY = identity_of(bytes(range(32)))
OTHER_IDENTITY = identity_of(bytes(range(1, 33)))
