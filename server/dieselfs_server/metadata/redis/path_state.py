"""The state of a path, as one value in Redis: the live entry or its tombstone, and newer files that are incomplete.

A value is decoded from its end: the seal, fields of fixed length, then assemblies and target. So a million values are
encoded and decoded as one array. No I/O.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.format import COLUMN_TYPES, ChunkHeader, Op
from dieselfs.records import Extent, FileRecord


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
        ("checksum", "<u8"),
        ("version", "<u8"),
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("mode", "<u2"),
        ("kind", "u1"),
        ("target_length", "<u2"),
        ("assemblies", "<u4"),
    ]
)
_FIXED = struct.Struct("<16sIIQQQqHBHI")
_SEQUENCE = struct.Struct("<Q")
_ASSEMBLY = struct.Struct("<QQQ")
_EXTENT = struct.Struct("<16sIIQHq")
assert _FIXED.size == FIXED.itemsize

NO_CHUNK = bytes(16)

Rank = tuple[int, int, int, bytes, int]


@dataclass(frozen=True, slots=True)
class PathState:
    """`chunk_id`, `entry`, `offset` and `checksum` are set for an entry in one chunk.

    `gathered` has (version, size, sum of the lengths of known extents) of the live file, if it spans chunks, and of all
    newer files. `sequence` rises with each change of extents, so that equal values mean equal extents.
    """

    kind: int = Kind.NOTHING
    version: int = 0
    size: int = 0
    mtime_ns: int = 0
    mode: int = 0
    chunk_id: bytes = NO_CHUNK
    entry: int = 0
    offset: int = 0
    checksum: int = 0
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
        fixed = _FIXED.pack(
            self.chunk_id,
            self.entry,
            self.offset,
            self.checksum,
            self.version,
            self.size,
            self.mtime_ns,
            self.mode,
            self.kind,
            len(self.target),
            len(self.gathered),
        )
        return b"".join(parts) + fixed

    @classmethod
    def of(cls, body: bytes) -> "PathState":
        fields = _FIXED.unpack_from(body, len(body) - _FIXED.size)
        chunk_id, entry, offset, checksum, version, size, mtime_ns, mode, kind, target_length, assemblies = (
            fields
        )
        sequence = 0
        gathered: tuple[tuple[int, int, int], ...] = ()
        if assemblies:
            (sequence,) = _SEQUENCE.unpack_from(body, target_length)
            start = target_length + _SEQUENCE.size
            packed = body[start : start + assemblies * _ASSEMBLY.size]
            gathered = tuple((v, s, length) for v, s, length in _ASSEMBLY.iter_unpack(packed))
        return cls(
            kind,
            version,
            size,
            mtime_ns,
            mode,
            chunk_id,
            entry,
            offset,
            checksum,
            body[:target_length],
            gathered,
            sequence,
        )

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The extent of a file in one chunk; empty for all other states."""
        if self.kind != Kind.FILE or not self.size:
            return ()
        return (Extent(0, self.chunk_id, self.offset, self.size, self.checksum),)

    def record(self, path: bytes, extents: tuple[Extent, ...]) -> FileRecord:
        """The record of a live entry."""
        op = Op.FILE if self.kind == Kind.SPANNING else self.kind
        return FileRecord(path, op, self.mode, self.mtime_ns, self.size, self.version, self.target, extents)


@dataclass(frozen=True, slots=True)
class StoredExtent:
    """Where an extent is stored, and mode and time of the whole file."""

    chunk_id: bytes
    entry: int
    offset: int
    checksum: int
    mode: int
    mtime_ns: int

    BODY_BYTES: ClassVar[int] = _EXTENT.size

    def body(self) -> bytes:
        return _EXTENT.pack(self.chunk_id, self.entry, self.offset, self.checksum, self.mode, self.mtime_ns)

    @classmethod
    def of(cls, body: bytes) -> "StoredExtent":
        return cls(*_EXTENT.unpack(body))


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
    fixed["checksum"] = np.where(is_file, header.checksums, np.uint64(0))
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
