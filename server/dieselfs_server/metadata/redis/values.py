"""The keys and values in Redis, each value sealed with a checksum: bytes in, records out. No I/O.

No other module makes a key. `docs/reference/metadata-keys.md` lists the keys, with the names and values of their
fields; a test compares them. A sorted set holds `name NUL value` with score 0, so that names are in order; in a hash,
names are fields.

A seal is the xxh3 of `name NUL body`, seeded with the key. Reading detects a value that was altered, or that is under
another key or name. In a conditional change, the seal represents the value.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from hashlib import blake2b
from typing import ClassVar, NamedTuple, Self

import msgpack
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from dieselfs.chunk.format import COLUMN_TYPES, ChunkHeader, Op, Preamble, decode_header, decode_preamble
from dieselfs.digests import DIGEST_BYTES, EXTENT_DIGESTS, NO_DIGEST, digest_of
from dieselfs.errors import Damaged
from dieselfs.names import printable
from dieselfs.records import ChunkRecord, DatasetRecord, Extent, FileRecord
from dieselfs_server.metadata.rules import Effects

DEFAULT_PREFIX = b"dieselfs:"
BUCKETS = 256
TOKEN_BYTES = 8

_EXTENT_NAME = struct.Struct(">QQQI")  # big-endian: the extents of a file are neighbours, in order
EXTENT_NAME_BYTES = _EXTENT_NAME.size

RECORD = b"record"
STORED = b"stored"
COUNTED = b"counted"
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


SEAL_BYTES = 8
_DATASET = struct.Struct("<16sqqqqq?")
_DELETED = struct.Struct("<q")
_NUMBER = struct.Struct("<q")
_COUNT = struct.Struct("<qqq")
_PENDING = struct.Struct("<qI")
_SEQUENCE = struct.Struct("<Q")
_ASSEMBLY = struct.Struct("<QQQ")


def seal(key_pair: KeyPair, name: bytes, body: bytes) -> bytes:
    """The value for `body` under `name`."""
    return body + xxh3_64_digest(name + b"\0" + body, key_pair.seed)


def unseal(key_pair: KeyPair, name: bytes, value: bytes) -> bytes:
    """The body of a value. Raises Damaged."""
    body = value[:-SEAL_BYTES]
    if xxh3_64_digest(name + b"\0" + body, key_pair.seed) != value[-SEAL_BYTES:]:
        raise damage(key_pair, name)
    return body


def damage(key_pair: KeyPair, name: bytes) -> Damaged:
    dataset = key_pair.owner if key_pair.owner.startswith("dl://") else "dl://DATASET"
    return Damaged(
        f"metadata in Redis: key {printable(key_pair.key)}: the value of {printable(name)!r} fails its checksum; "
        f"rebuild it from the chunks: dlcmd rebuild {dataset}"
    )


@dataclass(frozen=True)
class _Packed:
    """A record of fixed length."""

    FORMAT: ClassVar[struct.Struct]
    """Of the fields, in their order."""

    def body(self) -> bytes:
        return self.FORMAT.pack(*(getattr(self, each.name) for each in fields(self)))

    @classmethod
    def of(cls, body: bytes) -> Self:
        return cls(*cls.FORMAT.unpack(body))


@dataclass(frozen=True)
class Registered(_Packed):
    """A dataset's value in the registry."""

    FORMAT = struct.Struct(f"<16s{TOKEN_BYTES}s")
    dataset_id: bytes
    token: bytes


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset's record. `is_dropped`: the dataset no longer exists, and its keys are being removed."""

    record: DatasetRecord
    is_dropped: bool = False

    def body(self) -> bytes:
        r = self.record
        numbers = (r.generation, r.updated_ns, r.files, r.total_bytes, r.chunks)
        return _DATASET.pack(r.dataset_id, *numbers, self.is_dropped) + r.name.encode()

    @classmethod
    def of(cls, body: bytes) -> "DatasetState":
        dataset_id, *numbers, is_dropped = _DATASET.unpack_from(body)
        return cls(DatasetRecord(dataset_id, body[_DATASET.size :].decode(), *numbers), is_dropped)


def count_body(record: DatasetRecord, *numbers: int) -> bytes:
    """Two numbers of a record: under STORED its chunks and their bytes, under COUNTED its live entries and non-empty
    folders.
    """
    return _COUNT.pack(record.generation, *numbers)


def parse_count(
    key_pair: KeyPair, name: bytes, value: bytes | None, record: DatasetRecord
) -> tuple[int, int] | None:
    """The numbers of `count_body`; None if they are damaged, missing, or of another record."""
    with suppress(Damaged):
        if value is not None:
            generation, first, second = _COUNT.unpack(unseal(key_pair, name, value))
            return (first, second) if generation == record.generation else None
    return None


@dataclass(frozen=True)
class ChunkState(_Packed):
    """A chunk's record, without its deletion bitmap. `buckets` has one bit for each bucket with a receipt."""

    FORMAT = struct.Struct(f"<qIII{DIGEST_BYTES}s{BUCKETS // 8}s")
    updated_ns: int
    header_length: int
    payload_length: int
    entries: int
    payload_digest: bytes
    buckets: bytes

    def record(self, chunk_id: bytes, deleted: "DeletedState | None") -> ChunkRecord:
        bits = (deleted or DeletedState()).bits.ljust((self.entries + 7) // 8, b"\0")
        return ChunkRecord(
            chunk_id,
            max(self.updated_ns, deleted.updated_ns) if deleted else self.updated_ns,
            self.header_length,
            self.payload_length,
            self.payload_digest,
            self.entries,
            int.from_bytes(bits, "little").bit_count(),
            bits,
        )


@dataclass(frozen=True, slots=True)
class DeletedState:
    """A deletion bitmap, cut after its last bit, and its last change. May exist before its chunk's record."""

    updated_ns: int = 0
    bits: bytes = b""

    def body(self) -> bytes:
        return _DELETED.pack(self.updated_ns) + self.bits

    @classmethod
    def of(cls, body: bytes) -> "DeletedState":
        (updated_ns,) = _DELETED.unpack_from(body)
        return cls(updated_ns, body[_DELETED.size :])

    def marked(self, entries: Sequence[int], now_ns: int) -> "DeletedState":
        bits = bytearray(self.bits.ljust(max(entries) // 8 + 1, b"\0"))
        for entry in entries:
            bits[entry // 8] |= 1 << entry % 8
        return DeletedState(now_ns, bytes(bits))


def number_body(number: int) -> bytes:
    return _NUMBER.pack(number)


def number_of(body: bytes) -> int:
    (number,) = _NUMBER.unpack(body)
    return int(number)


def receipt_body(effects: Effects[bytes]) -> bytes:
    dead = {chunk_id: struct.pack(f"<{len(rows)}I", *rows) for chunk_id, rows in effects.dead.items()}
    packed: bytes = msgpack.packb([effects.files, effects.total_bytes, dead, dict(effects.members)])
    return packed


def receipt_of(body: bytes) -> Effects[bytes]:
    files, total_bytes, dead, members = msgpack.unpackb(body, strict_map_key=False)
    effects: Effects[bytes] = Effects(files=files, total_bytes=total_bytes)
    effects.members.update(members)
    for chunk_id, rows in dead.items():
        effects.dead[chunk_id] = list(struct.unpack(f"<{len(rows) // 4}I", rows))
    return effects


def pending_body(preamble: Preamble, header: ChunkHeader, now_ns: int) -> bytes:
    """All that another server needs to finish the application of a chunk."""
    encoded = header.encode()
    return _PENDING.pack(now_ns, len(encoded)) + preamble.encode() + encoded


def pending_of(body: bytes, source: str) -> tuple[Preamble, ChunkHeader, int]:
    """`(preamble, header, now_ns)`. Raises Damaged."""
    now_ns, length = _PENDING.unpack_from(body)
    start = len(body) - length
    preamble = decode_preamble(body[_PENDING.size : start], source)
    encoded = body[start:]  # the same header as in the chunk, but perhaps not the same bytes
    own = replace(preamble, header_length=length, header_digest=digest_of(encoded))
    return preamble, decode_header(own, encoded, source), now_ns


class Kind(IntEnum):
    """The first four have the values of `Op`."""

    DELETE = 0
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3
    SPANNING = 4
    """A live file that spans chunks."""
    NOTHING = 5
    """No entry yet, only extents of an incomplete file."""


FIXED = np.dtype(
    [
        ("chunk_id", "V16"),
        ("entry", "<u4"),
        ("offset", "<u4"),
        ("digest", EXTENT_DIGESTS),
        ("version", "<u8"),
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("mode", "<u2"),
        ("kind", "u1"),
        ("target_length", "<u2"),
        ("assemblies", "<u4"),
    ]
)
_FIXED = struct.Struct("<16sII16sQQqHBHI")
assert _FIXED.size == FIXED.itemsize

Rank = tuple[int, int, int, bytes, int]


class PathState(NamedTuple):
    """The state of a path: the live entry or its tombstone, and newer files that are incomplete.

    A value is decoded from its end: the seal, fields of fixed length (the first nine below), then assemblies and
    target. So a million values are encoded and decoded as one array.

    `chunk_id`, `entry`, `offset` and `digest` are set for an entry in one chunk. `gathered` has (version, size, sum
    of the lengths of known extents) of the live file, if it spans chunks, and of all newer files. `sequence` rises with
    each change of extents, so that equal values mean equal extents.
    """

    chunk_id: bytes = bytes(16)
    entry: int = 0
    offset: int = 0
    digest: bytes = NO_DIGEST
    version: int = 0
    size: int = 0
    mtime_ns: int = 0
    mode: int = 0
    kind: int = Kind.NOTHING
    target: bytes = b""
    gathered: tuple[tuple[int, int, int], ...] = ()
    sequence: int = 0

    @property
    def is_live(self) -> bool:
        return self.kind not in (Kind.DELETE, Kind.NOTHING)

    @property
    def is_whole(self) -> bool:
        """Whether it is one entry of one chunk."""
        return self.kind <= Kind.SYMLINK

    @property
    def is_file(self) -> bool:
        return self.kind in (Kind.FILE, Kind.SPANNING)

    @property
    def rank(self) -> Rank:
        """Of two states of a path, the one with the larger rank counts."""
        if self.is_whole:
            return self.version, 1, 0, self.chunk_id, self.entry
        return self.version, 0, self.size, b"", 0

    def body(self) -> bytes:
        parts = [self.target]
        if self.gathered:
            parts.append(_SEQUENCE.pack(self.sequence))
            parts += [_ASSEMBLY.pack(*assembly) for assembly in self.gathered]
        return b"".join(parts) + _FIXED.pack(*self[:9], len(self.target), len(self.gathered))

    @classmethod
    def of(cls, body: bytes) -> "PathState":
        *fixed, target_length, assemblies = _FIXED.unpack_from(body, len(body) - _FIXED.size)
        sequence = 0
        gathered: tuple[tuple[int, int, int], ...] = ()
        if assemblies:
            (sequence,) = _SEQUENCE.unpack_from(body, target_length)
            start = target_length + _SEQUENCE.size
            gathered = tuple(_ASSEMBLY.iter_unpack(body[start : start + assemblies * _ASSEMBLY.size]))
        return cls._make((*fixed, body[:target_length], gathered, sequence))

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The extent of a file in one chunk; empty for all other states."""
        if self.kind != Kind.FILE or not self.size:
            return ()
        return (Extent(0, self.chunk_id, self.offset, self.size, self.digest),)

    def record(self, path: bytes, extents: tuple[Extent, ...]) -> FileRecord:
        op = Op.FILE if self.kind == Kind.SPANNING else self.kind
        return FileRecord(path, op, self.mode, self.mtime_ns, self.size, self.version, self.target, extents)


@dataclass(frozen=True)
class StoredExtent(_Packed):
    """Where an extent is stored, and mode and time of the whole file."""

    FORMAT = struct.Struct("<16sII16sHq")
    chunk_id: bytes
    entry: int
    offset: int
    digest: bytes
    mode: int
    mtime_ns: int


def bodies_of(chunk_id: bytes, header: ChunkHeader) -> list[bytes]:
    """The body of each entry of a chunk, as the live entry of its path.

    Raises ValueError if the columns of the header differ in length, which no decoder allows.
    """
    count = len(header)
    if any(len(getattr(header, column)) != count for column in COLUMN_TYPES):
        raise ValueError("the columns of a chunk's header are not equally long")
    is_file, is_link = header.ops == Op.FILE, header.ops == Op.SYMLINK
    fixed = np.zeros(count, FIXED)
    fixed["chunk_id"] = np.frombuffer(chunk_id, "V16")
    fixed["entry"] = np.arange(count)
    fixed["offset"] = np.where(is_file, header.offsets, 0)
    fixed["digest"] = np.where(is_file, header.digests, np.void(NO_DIGEST))
    fixed["version"] = header.versions
    fixed["size"] = header.sizes
    fixed["mtime_ns"] = header.mtimes_ns
    fixed["mode"] = header.modes
    fixed["kind"] = header.ops
    fixed["target_length"] = np.where(is_link, header.lengths, 0)
    packed = fixed.tobytes()
    bodies = [packed[start : start + FIXED.itemsize] for start in range(0, len(packed), FIXED.itemsize)]
    for entry in np.flatnonzero(is_link).tolist():
        bodies[entry] = header.target(entry) + bodies[entry]
    return bodies


def fixed_fields(values: Sequence[bytes], tail_bytes: int) -> npt.NDArray[np.void]:
    """The fixed fields of values, each followed by `tail_bytes`: shape (len(values),), dtype FIXED."""
    width = FIXED.itemsize
    return np.frombuffer(b"".join([value[-width - tail_bytes : -tail_bytes] for value in values]), FIXED)
