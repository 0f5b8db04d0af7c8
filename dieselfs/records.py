"""Records of a metadata store about datasets, chunks and entries. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # so that a tool that shows one record starts without numpy
    import numpy as np
    import numpy.typing as npt


class Op(IntEnum):
    """The operation of a chunk entry on its path."""

    DELETE = 0
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class DatasetRecord(NamedTuple):
    """One dataset. `generation` rises with every chunk that is applied; `updated_ns` is since 1970."""

    dataset_id: bytes
    name: str
    generation: int
    updated_ns: int
    files: int
    total_bytes: int
    chunks: int


class DatasetUsage(NamedTuple):
    """What a dataset takes. `stored_bytes`: of all its chunks, with their headers; of attached ones too. `paths`: live
    entries, or files and non-empty folders, whichever are more: a folder counts with or without an entry of its own.
    """

    record: DatasetRecord
    stored_bytes: int
    paths: int


class ChunkRecord(NamedTuple):
    """One chunk of a dataset, as DIESEL 4.1.1 keeps it. Lengths in bytes.

    `deleted` has one bit per entry (bit `i % 8` of byte `i // 8`): the entry is dead.
    """

    chunk_id: bytes
    updated_ns: int
    header_length: int
    payload_length: int
    payload_digest: bytes
    entries: int
    deleted_entries: int
    deleted: bytes


class Extent(NamedTuple):
    """An extent: its place in the file, its chunk, offset and length in the payload, and the digest of its bytes."""

    place: int
    chunk_id: bytes
    offset: int
    length: int
    digest: bytes


class FileRecord(NamedTuple):
    """One live file, folder, or link. `op` is an `Op`; `extents` are in file order."""

    path: bytes
    op: int
    mode: int
    mtime_ns: int
    size: int
    version: int
    target: bytes
    extents: tuple[Extent, ...]


class NoteChange(NamedTuple):
    """A change of a note that has the `expected` value (None: there is no note). `value` None removes the note."""

    name: str
    expected: bytes | None
    value: bytes | None


class PendingFile(NamedTuple):
    """A file with some, but not all, extents stored; `version` 0 if there is none. `extents`: their digests, by
    (place, length).
    """

    version: int = 0
    size: int = 0
    mtime_ns: int = 0
    extents: Mapping[tuple[int, int], bytes] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class EntryTable:
    """All live entries of one generation, as columns of shape (rows,); the input of a snapshot.

    Rows are ordered by `(folder, name)`, as bytes. A file of one extent has the index of its chunk in `chunks` (else
    -1), with `offsets` and `digests`. The extents of a file that spans chunks are in `extents`, ordered by
    `(row, place)`. Indexes are those of `chunk_table`, which is ordered by chunk ID.
    """

    dataset: DatasetRecord
    chunk_table: Sequence[ChunkRecord]
    folders: Sequence[bytes]
    names: Sequence[bytes]
    ops: npt.NDArray[np.uint8]
    modes: npt.NDArray[np.uint32]
    mtimes_ns: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint64]
    chunks: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint32]
    digests: npt.NDArray[np.void]
    targets: dict[int, bytes]
    """By the row of a symbolic link, its target."""
    extents: ExtentColumns


@dataclass(frozen=True, eq=False)
class ExtentColumns:
    """Extents of files that span chunks, each column of shape (extents,); `rows` are those of the `EntryTable`."""

    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.uint64]
    chunks: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    digests: npt.NDArray[np.void]
