"""Every key of the Redis metadata store; no other module makes one. `docs/metadata-keys.md` explains them. No I/O.

PREFIX is `dieselfs:` unless the URL says otherwise, T the token of a dataset (new whenever one is created, so that
nothing is mistaken for what an older dataset left), NN a bucket (00 to ff: the first byte of a folder's hash), H a
folder's hash. Redis Cluster puts keys with the same text in braces on one node, where a script can change them at once.

    key                        kind    cells: name -> value
    PREFIX{datasets}           hash    dataset name -> dataset ID, token;   / -> the token that was given last
    PREFIX{T}:dataset          hash    record -> generation, time, totals;  versions -> last version;
                                       hold -> who reads all of it;         NN -> changes of bucket NN, at least
    PREFIX{T}:chunks           sorted  chunk ID -> time, lengths, checksum, entries, buckets
    PREFIX{T}:deleted          hash    chunk ID -> time, deletion bitmap
    PREFIX{T}:pending          hash    chunk ID -> header of a chunk that is being applied
    PREFIX{T}:tree             sorted  folder NUL name -> number of things in that folder, above 0
    PREFIX{T}:tree:hidden      hash    the same, below 0 (for as long as chunks are on their way)
    PREFIX{T}:notes            sorted  name of a note -> the note
    PREFIX{T.NN}:changes       hash    changes -> how often anything in the bucket was changed (plain decimal)
    PREFIX{T.NN}:receipts      hash    chunk ID -> effects of what was applied of the chunk in this bucket
    PREFIX{T.NN}:folders       hash    H -> path of the folder
    PREFIX{T.NN}:pieces        sorted  path NUL version, size, place, length -> where the piece lies
    PREFIX{T.NN}:live:H        sorted  name -> the live entry
    PREFIX{T.NN}:hidden:H      hash    name -> a tombstone, or that only pieces are there

A sorted set holds `name NUL value` with score 0, so that names come in order; in a hash, names are fields. Every value
but the changes ends in a checksum of name and value, seeded with the key.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from xxhash import xxh3_64_intdigest

DEFAULT_PREFIX = b"dieselfs:"
BUCKETS = 256
TOKEN_BYTES = 8

_PIECE_NAME = struct.Struct(">QQQI")  # big-endian: pieces of a file come together, and in order
PIECE_NAME_BYTES = _PIECE_NAME.size

RECORD = b"record"
VERSIONS = b"versions"
HOLD = b"hold"
CHANGES = b"changes"
REGISTRY_CHANGES = b"/"
"""No dataset is called so."""


@dataclass(frozen=True, eq=False)
class Drawer:
    """Where cells of one sort lie: a sorted set, a hash, or a pair of them. `owner` is what errors call the whole."""

    owner: str
    sorted_key: bytes = b""
    hash_key: bytes = b""

    @property
    def key(self) -> bytes:
        return self.sorted_key or self.hash_key

    @cached_property
    def seed(self) -> int:
        return xxh3_64_intdigest(self.key)


def registry_drawer(prefix: bytes) -> Drawer:
    return Drawer("the list of datasets", hash_key=prefix + b"{datasets}")


class DatasetKeys:
    """Keys of one dataset, all on one node of a cluster; those of its buckets may be on others."""

    def __init__(self, prefix: bytes, name: str, token: bytes) -> None:
        self.name = name
        self.token = token
        self.owner = f"dl://{name}"
        self._prefix = prefix
        base = prefix + b"{" + token.hex().encode() + b"}:"
        self.dataset = Drawer(self.owner, hash_key=base + b"dataset")
        self.chunks = Drawer(self.owner, sorted_key=base + b"chunks")
        self.deleted = Drawer(self.owner, hash_key=base + b"deleted")
        self.pending = Drawer(self.owner, hash_key=base + b"pending")
        self.tree = Drawer(self.owner, base + b"tree", base + b"tree:hidden")
        self.notes = Drawer(self.owner, sorted_key=base + b"notes")

    @property
    def all_keys(self) -> list[bytes]:
        drawers = (self.dataset, self.chunks, self.deleted, self.pending, self.tree, self.notes)
        return [key for drawer in drawers for key in (drawer.sorted_key, drawer.hash_key) if key]

    def folder_hash(self, folder: bytes) -> bytes:
        return blake2b(folder, digest_size=16, key=self.token).digest()

    def bucket(self, number: int) -> "BucketKeys":
        return BucketKeys(self._prefix, self.owner, self.token, number)


class BucketKeys:
    """Keys of one bucket of a dataset, all on one node of a cluster."""

    def __init__(self, prefix: bytes, owner: str, token: bytes, number: int) -> None:
        self._base = prefix + b"{%b.%02x}:" % (token.hex().encode(), number)
        self._owner = owner
        self.changes = Drawer(owner, hash_key=self._base + b"changes")
        self.receipts = Drawer(owner, hash_key=self._base + b"receipts")
        self.folders = Drawer(owner, hash_key=self._base + b"folders")
        self.pieces = Drawer(owner, sorted_key=self._base + b"pieces")

    @property
    def own_keys(self) -> list[bytes]:
        return [drawer.key for drawer in (self.changes, self.receipts, self.folders, self.pieces)]

    def folder(self, folder_hash: bytes) -> Drawer:
        printed = folder_hash.hex().encode()
        return Drawer(self._owner, self._base + b"live:" + printed, self._base + b"hidden:" + printed)


def bucket_name(number: int) -> bytes:
    return b"%02x" % number


def piece_name(path: bytes, version: int, size: int, place: int, length: int) -> bytes:
    return path + b"\0" + _PIECE_NAME.pack(version, size, place, length)


def parse_piece_name(name: bytes) -> tuple[bytes, int, int, int, int]:
    """`(path, version, size, place, length)`. Raises struct.error for what is no name of a piece."""
    version, size, place, length = _PIECE_NAME.unpack(name[-PIECE_NAME_BYTES:])
    return name[: -PIECE_NAME_BYTES - 1], version, size, place, length


def pieces_of_file(path: bytes, version: int, size: int) -> tuple[bytes, bytes]:
    """The bounds, as Redis writes them, of the names of all pieces of one file."""
    start = path + b"\0" + struct.pack(">QQ", version, size)
    return b"[" + start, b"(" + start + b"\xff"  # no place in a file begins with this byte


def pieces_of_path(path: bytes) -> tuple[bytes, bytes]:
    return b"[" + path + b"\0", b"(" + path + b"\1"


def names_after(after: bytes, within: bytes | None = None) -> tuple[bytes, bytes]:
    """The bounds of the names behind `after`; of the folder `within`, where names are `folder NUL name`."""
    if within is None:
        return b"[" + after + b"\1", b"+"
    return b"[" + within + b"\0" + after + b"\1", b"(" + within + b"\1"


def names_below(start: bytes) -> tuple[bytes, bytes]:
    """The bounds of the names that begin with `start`; names are UTF-8."""
    return b"[" + start, b"(" + start + b"\xff"


def tree_name(parent: bytes, name: bytes) -> bytes:
    return parent + b"\0" + name
