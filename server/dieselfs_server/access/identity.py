"""The identity of a store: the Ed25519 key with which all its servers sign, and which they show to clients.

Its private key is in a record of the object store beside the users: anybody with read access to that record can pose as
the servers. Or it is kept apart (setting `server_identity`), in a private file of each server or in a token with
PKCS#11 (`key_places.py`); then the records have public keys alone:

    identity            the present one
    identity-next       the next one, while it is announced
    identity-before     the one before, while tags are signed again

A record with a public key of another identity has a signature of the present one: who can only write to the store
cannot make servers accept a key. This module reads and writes the store.
"""

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from dieselfs.errors import AccessDenied, Damaged, DieselfsError, InvalidInput, Unavailable
from dieselfs.net.auth import PUBLIC_KEY_BYTES, check_signature, pin_of
from dieselfs_server.store.interface import ObjectStore

IDENTITY_RECORD = "identity"
NEXT_RECORD = "identity-next"
"""The identity that the servers will have. Key files that are made now accept both."""
BEFORE_RECORD = "identity-before"
SEED_BYTES = 32
IDENTITY_REFRESH_S = 2.0
"""All servers have a new identity within this time, and one second."""

_RECORD = re.compile(rb"dieselfs-identity (?:1 ([0-9a-f]{64})|2) ([0-9a-f]{64})(?: ([0-9a-f]{128}))?\n")
_CONTEXT = b"dieselfs identity\0"
"""Before the public key of another identity that the present one names."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """`seed` is the private key; it is not shown when an identity is printed. It is empty if `signer` signs with a key
    that is elsewhere, or if only the public key is known; then `endorsement` is the signature of the present identity.
    """

    seed: bytes = field(repr=False)
    public_key: bytes
    signer: Callable[[bytes], bytes] | None = field(default=None, repr=False, compare=False)
    endorsement: bytes = field(default=b"", repr=False, compare=False)

    @property
    def pin(self) -> bytes:
        return pin_of(self.public_key)

    @property
    def current(self) -> "Identity":
        """Itself, as of a `LiveIdentity`."""
        return self

    @property
    def next(self) -> "Identity | None":
        return None

    def refresh(self, is_whole: bool = False) -> None:
        """Nothing: it stays."""

    def accepts(self, public_key: bytes) -> bool:
        return public_key == self.public_key

    def sign(self, message: bytes) -> bytes:
        """Blocks if the key is in a token. Raises Unavailable then."""
        if self.signer is not None:
            return self.signer(message)
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

    def encode_public(self, by: "Identity | None" = None) -> bytes:
        """The record without the private key; `by`: the present identity, if this is another one."""
        signature = b"" if by is None else by.sign(_CONTEXT + self.public_key)
        return f"dieselfs-identity 2 {self.public_key.hex()} {signature.hex()}".strip().encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes, record: str = IDENTITY_RECORD) -> "Identity":
        """Raises Damaged."""
        match = _RECORD.fullmatch(content)
        if match is None:
            raise Damaged(f"the identity of the servers in the object store (record {record!r}) is invalid")
        seed, public_key, endorsement = (bytes.fromhex((part or b"").decode()) for part in match.groups())
        assert len(public_key) == PUBLIC_KEY_BYTES
        return cls(seed, public_key, None, endorsement)


class KeyPlace(Protocol):
    """A place of private keys apart from the object store; `str` names it in messages. All methods block, and raise
    AccessDenied, InvalidInput, and Unavailable.
    """

    def find(self, public_key: bytes) -> Identity | None:
        """The identity with this public key; with an empty one, any, for a new store."""
        ...

    def add(self, identity: Identity) -> None:
        """Add a private key; durable when this returns."""
        ...

    def generate(self) -> Identity:
        """Make a private key there."""
        ...

    def remove(self, public_key: bytes) -> None:
        """Remove the private key of this public key; no error if there is none."""
        ...


def store_identity(store: ObjectStore, keys: KeyPlace | None = None) -> Identity:
    """The identity of the servers of this store; the first caller makes it.

    Raises Damaged, Unavailable, AccessDenied; InvalidInput if the private key is not in its place.
    """
    content = store.get_record(IDENTITY_RECORD)
    if content is None:
        made = Identity.generate() if keys is None else keys.find(b"") or keys.generate()
        store.create_record(IDENTITY_RECORD, made.encode() if keys is None else made.encode_public())
        content = store.get_record(IDENTITY_RECORD)  # perhaps that of another server
    if content is None:
        raise Unavailable(
            f"object store: record {IDENTITY_RECORD!r} was removed at once; start the server again"
        )
    return _with_key(Identity.decode(content), keys)


def _with_key(found: Identity, keys: KeyPlace | None) -> Identity:
    """The identity of a record with its private key. Raises InvalidInput."""
    if keys is None:
        if not found.seed:
            raise InvalidInput(
                "the private key of the servers is kept apart from the object store: set server_identity to its place"
            )
        return found
    if found.seed:
        raise InvalidInput(
            "server_identity is set, but the private key of the servers is in the object store: move it with "
            "dieselfs-server --move-identity"
        )
    key = keys.find(found.public_key)
    if key is None:
        raise InvalidInput(
            f"server_identity {keys} lacks the private key of the identity {found.pin.hex()[:16]} of this store: copy "
            "the file from the server where the key was made, or name the token that has it"
        )
    return key


def _named(store: ObjectStore, record: str, present: Identity, keys: KeyPlace | None) -> Identity | None:
    """The identity of another record, without its private key if that is kept apart; None without a record.

    Raises Damaged if the present identity has not named it.
    """
    content = store.get_record(record)
    if content is None:
        return None
    found = Identity.decode(content, record)
    if found.public_key == present.public_key:  # after an interruption
        return None
    if not found.seed or keys is not None:  # else who can write to the store has the private key
        message = _CONTEXT + found.public_key
        try:
            check_signature(present.pin, present.public_key, message, found.endorsement, f"record {record!r}")
        except AccessDenied as error:
            raise Damaged(f"{error}; it is not used") from None
    return found


def next_identity(store: ObjectStore, keys: KeyPlace | None = None) -> Identity | None:
    """The announced one, with its private key. Raises Damaged, InvalidInput, AccessDenied, Unavailable."""
    found = _named(store, NEXT_RECORD, store_identity(store, keys), keys)
    return None if found is None else _with_key(found, keys)


def announce_identity(store: ObjectStore, keys: KeyPlace | None = None) -> Identity:
    """Make the next identity, unless there is one; servers show its pin to clients from now on. Raises as
    `next_identity`.
    """
    present = store_identity(store, keys)
    if store.get_record(NEXT_RECORD) is None:
        made = Identity.generate() if keys is None else keys.generate()
        store.create_record(NEXT_RECORD, made.encode() if keys is None else made.encode_public(present))
    announced = next_identity(store, keys)
    if announced is None:
        raise Unavailable(f"object store: record {NEXT_RECORD!r} was removed at once; try again")
    return announced


def use_identity(store: ObjectStore, keys: KeyPlace | None, new: Identity) -> None:
    """Make `new`, the next identity, the present one. Until `forget_before`, servers accept the one before too."""
    old = store_identity(store, keys)
    store.put_record(BEFORE_RECORD, old.encode_public(new))
    store.put_record(IDENTITY_RECORD, new.encode() if keys is None else new.encode_public())
    store.delete_record(NEXT_RECORD)


def identity_before(store: ObjectStore, present: Identity) -> Identity | None:
    """The one before, without its private key. Raises Damaged."""
    return _named(store, BEFORE_RECORD, present, None)


def forget_before(store: ObjectStore, keys: KeyPlace | None, before: Identity) -> None:
    store.delete_record(BEFORE_RECORD)
    if keys is not None:
        keys.remove(before.public_key)


def move_identity(store: ObjectStore, keys: KeyPlace) -> int:
    """Move the private keys in records of the store to `keys`; returns their number. Running servers keep theirs. May
    be repeated after an interruption. Raises NotFound, InvalidInput, AccessDenied, Damaged, Unavailable.
    """
    moved, present = 0, None
    for record in (IDENTITY_RECORD, NEXT_RECORD):
        content = store.get_record(record)
        found = None if content is None else Identity.decode(content, record)
        if found is not None and found.seed:
            keys.add(found)
            kept = keys.find(found.public_key)
            message = b"dieselfs test\0"
            if kept is None:
                raise Unavailable(f"{keys} does not have the key that was added; the store still has it")
            check_signature(found.pin, found.public_key, message, kept.sign(message), str(keys))
            store.put_record(record, found.encode_public(present))
            moved += 1
        present = keys.find(found.public_key) if found is not None and present is None else present
    return moved


class LiveIdentity:
    """The identity of a server that runs: it follows that of the store. Thread-safe.

    While the identity is replaced, what the one before or the next one has signed is accepted as well.
    """

    def __init__(self, store: ObjectStore, keys: KeyPlace | None = None) -> None:
        """Raises as `store_identity`."""
        self._store, self._keys = store, keys
        self._lock = Lock()  # serializes changes of the four below; each is replaced in one step
        self.current = store_identity(store, keys)
        self.next: Identity | None = None
        self._accepted: frozenset[bytes] = frozenset()
        self.trouble = ""
        """Why the identity of the store is not the one in use; empty if it is."""
        self.refresh(is_whole=True)

    def refresh(self, is_whole: bool = False) -> None:
        """Read the identity again; with `is_whole` also the next one and the one before, which are not expected
        otherwise. Blocks. Raises Unavailable.
        """
        with self._lock:
            before, trouble = self.current, ""
            try:
                found = Identity.decode(self._store.get_record(IDENTITY_RECORD) or b"")
                if found.public_key != before.public_key:
                    self.current = _with_key(found, self._keys)
                    log.warning("the identity of the servers is %s now", found.pin.hex())
            except Unavailable:
                raise
            except DieselfsError as error:
                trouble = str(error)
                if trouble != self.trouble:
                    log.error("%s; the last identity stays in use", error)
            self.trouble = trouble
            if is_whole or self._accepted or self.current is not before:
                self.next, others = self._read(NEXT_RECORD), [self._read(BEFORE_RECORD)]
                self._accepted = frozenset(each.public_key for each in (self.next, *others) if each)

    def _read(self, record: str) -> Identity | None:
        try:
            return _named(self._store, record, self.current, self._keys)
        except Damaged as error:
            log.error("%s", error)
            return None

    def accepts(self, public_key: bytes) -> bool:
        """Whether this is the key of the identity, or of the other one while it is replaced. May block. Raises
        Unavailable.
        """
        if public_key == self.current.public_key or public_key in self._accepted:
            return True
        self.refresh(is_whole=True)
        return public_key == self.current.public_key or public_key in self._accepted
