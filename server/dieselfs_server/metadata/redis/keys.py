"""All keys of the Redis metadata store; no other module makes one. No I/O.

`docs/reference/metadata-keys.md` lists the keys, with the names and values of their fields; a test compares them. A
sorted set holds `name NUL value` with score 0, so that names are in order; in a hash, names are fields.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from xxhash import xxh3_64_intdigest

DEFAULT_PREFIX = b"dieselfs:"
BUCKETS = 256
TOKEN_BYTES = 8

_EXTENT_NAME = struct.Struct(">QQQI")  # big-endian: the extents of a file are neighbours, in order
EXTENT_NAME_BYTES = _EXTENT_NAME.size

RECORD = b"record"
STORED = b"stored"
VERSIONS = b"versions"
HOLD = b"hold"
CHANGES = b"changes"
COPY = b"copy"
MOVED = b"moved"
REPLACED = b"replaced"
REGISTRY_CHANGES = b"/"
"""Not a valid dataset name."""


@dataclass(frozen=True, eq=False)
class KeyPair:
    """The keys of fields of one kind: a sorted set, a hash, or both. `owner` names the whole in error messages."""

    owner: str
    sorted_key: bytes = b""
    hash_key: bytes = b""

    @property
    def key(self) -> bytes:
        return self.sorted_key or self.hash_key

    @cached_property
    def seed(self) -> int:
        return xxh3_64_intdigest(self.key)


def registry_keys(prefix: bytes) -> KeyPair:
    """The number in the key is the version of all values. A server that finds no datasets of its version rebuilds."""
    return KeyPair("the registry of datasets", hash_key=prefix + b"{datasets2}")


def common_notes_keys(prefix: bytes) -> KeyPair:
    """Of the notes that belong to no dataset."""
    return KeyPair("the notes of the store", hash_key=prefix + b"{notes}")


class DatasetKeys:
    """Keys of one dataset, all on one node of a cluster; its buckets may be on other nodes."""

    def __init__(self, prefix: bytes, name: str, token: bytes) -> None:
        self.name = name
        self.token = token
        self.owner = f"dl://{name}"
        self._prefix = prefix
        base = prefix + b"{" + token.hex().encode() + b"}:"
        self.dataset = KeyPair(self.owner, hash_key=base + b"dataset")
        self.chunks = KeyPair(self.owner, sorted_key=base + b"chunks")
        self.deleted = KeyPair(self.owner, hash_key=base + b"deleted")
        self.pending = KeyPair(self.owner, hash_key=base + b"pending")
        self.tree = KeyPair(self.owner, base + b"tree", base + b"tree:hidden")
        self.notes = KeyPair(self.owner, sorted_key=base + b"notes")

    def with_token(self, token: bytes) -> "DatasetKeys":
        """The keys of a copy of the dataset."""
        return DatasetKeys(self._prefix, self.name, token)

    @property
    def all_keys(self) -> list[bytes]:
        key_pairs = (self.dataset, self.chunks, self.deleted, self.pending, self.tree, self.notes)
        return [key for key_pair in key_pairs for key in (key_pair.sorted_key, key_pair.hash_key) if key]

    def folder_hash(self, folder: bytes) -> bytes:
        return blake2b(folder, digest_size=16, key=self.token).digest()

    def bucket(self, number: int) -> "BucketKeys":
        return BucketKeys(self._prefix, self.owner, self.token, number)


class BucketKeys:
    """Keys of one bucket of a dataset, all on one node of a cluster."""

    def __init__(self, prefix: bytes, owner: str, token: bytes, number: int) -> None:
        self._base = prefix + b"{%b.%02x}:" % (token.hex().encode(), number)
        self._owner = owner
        self.changes = KeyPair(owner, hash_key=self._base + b"changes")
        self.receipts = KeyPair(owner, hash_key=self._base + b"receipts")
        self.folders = KeyPair(owner, hash_key=self._base + b"folders")
        self.extents = KeyPair(owner, sorted_key=self._base + b"pieces")

    @property
    def own_keys(self) -> list[bytes]:
        return [key_pair.key for key_pair in (self.changes, self.receipts, self.folders, self.extents)]

    def folder(self, folder_hash: bytes) -> KeyPair:
        printed = folder_hash.hex().encode()
        return KeyPair(self._owner, self._base + b"live:" + printed, self._base + b"hidden:" + printed)


def bucket_name(number: int) -> bytes:
    return b"%02x" % number


def extent_name(path: bytes, version: int, size: int, place: int, length: int) -> bytes:
    return path + b"\0" + _EXTENT_NAME.pack(version, size, place, length)


def parse_extent_name(name: bytes) -> tuple[bytes, int, int, int, int]:
    """`(path, version, size, place, length)`. Raises struct.error for another name."""
    version, size, place, length = _EXTENT_NAME.unpack(name[-EXTENT_NAME_BYTES:])
    return name[: -EXTENT_NAME_BYTES - 1], version, size, place, length


def extents_of_file(path: bytes, version: int, size: int) -> tuple[bytes, bytes]:
    """The bounds, in the syntax of ZRANGEBYLEX, of the names of all extents of one file."""
    start = path + b"\0" + struct.pack(">QQ", version, size)
    return b"[" + start, b"(" + start + b"\xff"  # no place is large enough to begin with this byte


def names_after(after: bytes, within: bytes | None = None) -> tuple[bytes, bytes]:
    """The bounds of the names after `after`; with `within`, of `folder NUL name` in that folder."""
    if within is None:
        return b"[" + after + b"\1", b"+"
    return b"[" + within + b"\0" + after + b"\1", b"(" + within + b"\1"


def names_below(start: bytes) -> tuple[bytes, bytes]:
    """The bounds of the names that begin with `start`; names are UTF-8."""
    return b"[" + start, b"(" + start + b"\xff"


def tree_name(parent: bytes, name: bytes) -> bytes:
    return parent + b"\0" + name
