"""The identity key of a store: all its servers sign with it, and show it to clients.

It is a record of the object store beside the users: anybody with read access to that record can pose as the servers.
"""

import os
import re
from dataclasses import dataclass, field

from dieselfs.errors import Damaged, Unavailable
from dieselfs.net.auth import PUBLIC_KEY_BYTES, pin_of
from dieselfs_server.store.interface import ObjectStore

IDENTITY_RECORD = "identity"
SEED_BYTES = 32

_RECORD = re.compile(rb"dieselfs-identity 1 ([0-9a-f]{64}) ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class Identity:
    """`seed` is the private key; it is not shown when an identity is printed."""

    seed: bytes = field(repr=False)
    public_key: bytes

    @property
    def pin(self) -> bytes:
        return pin_of(self.public_key)

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)

    @classmethod
    def generate(cls) -> "Identity":
        # Only the first server of a store, and those that sign, load the package.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        seed = os.urandom(SEED_BYTES)
        return cls(seed, Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())

    def encode(self) -> bytes:
        return f"dieselfs-identity 1 {self.seed.hex()} {self.public_key.hex()}\n".encode()

    @classmethod
    def decode(cls, content: bytes) -> "Identity":
        """Raises Damaged."""
        match = _RECORD.fullmatch(content)
        if match is None:
            raise Damaged(
                f"the identity of the servers in the object store (record {IDENTITY_RECORD!r}) is invalid"
            )
        identity = cls(bytes.fromhex(match[1].decode()), bytes.fromhex(match[2].decode()))
        assert len(identity.public_key) == PUBLIC_KEY_BYTES
        return identity


def store_identity(store: ObjectStore) -> Identity:
    """The identity of the servers of this store; the first caller makes it. Raises Damaged, Unavailable."""
    content = store.get_record(IDENTITY_RECORD)
    if content is None:
        store.create_record(IDENTITY_RECORD, Identity.generate().encode())
        content = store.get_record(IDENTITY_RECORD)  # perhaps that of another server
    if content is None:
        raise Unavailable(
            f"object store: record {IDENTITY_RECORD!r} was removed at once; start the server again"
        )
    return Identity.decode(content)
