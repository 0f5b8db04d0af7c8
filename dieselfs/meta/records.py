"""Records of the metadata: what a store keeps about datasets, chunks and entries, and how it hands them out. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """One dataset. `generation` rises with every chunk that is applied; `updated_ns` is since 1970."""

    dataset_id: bytes
    name: str
    generation: int
    updated_ns: int
    files: int
    total_bytes: int
    chunks: int


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One chunk of a dataset, as DIESEL 4.1.1 keeps it. Lengths in bytes.

    `deleted` has one bit per entry (bit `i % 8` of byte `i // 8`): the entry was replaced or deleted since.
    """

    chunk_id: bytes
    updated_ns: int
    header_length: int
    payload_length: int
    payload_checksum: int
    entries: int
    deleted_entries: int
    deleted: bytes


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a run of a file's bytes lies: in the payload of which chunk, from where on, how many, and their xxh3."""

    place: int
    chunk_id: bytes
    offset: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One live file, folder, or link. `op` is a `chunk.format.Op`; `extents` are in file order."""

    path: bytes
    op: int
    mode: int
    mtime_ns: int
    size: int
    version: int
    target: bytes
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class NoteChange:
    """A new value for a note, None to remove it, if its present value is what is expected, None if there is none."""

    name: str
    expected: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class PendingFile:
    """A file of which some pieces are stored, but not all; `version` 0 if there is none. `pieces`: (place, length)."""

    version: int = 0
    size: int = 0
    mtime_ns: int = 0
    pieces: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, eq=False)
class EntryTable:
    """All live entries of one generation, as columns; what a snapshot is built from.

    Rows come ordered by `(folder, name)`, as bytes. A file that lies in one chunk has that chunk's index in
    `chunks` (else -1) with `offsets` and `checksums`; the pieces of one that spans chunks stand in `pieces`, ordered by
    `(row, place)`. Indexes point into `chunk_table`, which is ordered by chunk ID.
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
    checksums: npt.NDArray[np.uint64]
    targets: dict[int, bytes]
    """Row of a symbolic link: its target."""
    pieces: "PieceTable"


@dataclass(frozen=True, eq=False)
class PieceTable:
    """Pieces of files that span chunks; `rows` are rows of the `EntryTable`."""

    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.uint64]
    chunks: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    checksums: npt.NDArray[np.uint64]
