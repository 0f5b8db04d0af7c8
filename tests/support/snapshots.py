"""Snapshots of synthetic trees: from a dict of entries to the table and the file, and to the expected entries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.format import Op
from dieselfs.digests import EXTENT_DIGESTS, NO_DIGEST, digest_of, extent_digest_of
from dieselfs.names import split_path
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable, ExtentColumns
from dieselfs.snapshot.builder import IMPLICIT_FOLDER_MODE, build_snapshot
from dieselfs.snapshot.delta import apply_delta
from dieselfs.snapshot.delta_format import Delta
from dieselfs.snapshot.encoding import encode_snapshot
from dieselfs.snapshot.format import SECTION_TYPES
from dieselfs.snapshot.reader import ExtentRef, Snapshot

SOURCE = "snapshot 7"
DATASET_ID = bytes(range(0xA0, 0xB0))
PAYLOAD_BYTES = 1 << 16
"""Length of every chunk's payload."""


@dataclass(frozen=True)
class Entry:
    """The entry of a path. `extents` cover a file from its beginning to its end."""

    op: Op
    mode: int = 0o640
    mtime_ns: int = 0
    extents: tuple[ExtentRef, ...] = ()
    target: bytes = b""


Tree = Mapping[bytes, Entry]


def file_of(*ranges: tuple[int, int, int], mode: int = 0o644, mtime_ns: int = 0) -> Entry:
    """A file of the extents `(chunk, offset, length)`."""
    extents, place = [], 0
    for chunk, offset, length in ranges:
        extents.append(ExtentRef(place, chunk, offset, length, extent_digest_of(b"%d:%d" % (chunk, offset))))
        place += length
    return Entry(Op.FILE, mode, mtime_ns, tuple(extents))


SAMPLE: dict[bytes, Entry] = {
    b"train": Entry(Op.DIRECTORY, 0o755, 1_600_000_000_000_000_000),
    b"train/cat.txt": file_of((0, 0, 5), mtime_ns=1_600_000_000_000_000_001),
    b"train/empty": file_of(mode=0o600, mtime_ns=1_600_000_000_000_000_002),
    b"train/video.mp4": file_of((0, 5, 100), (1, 0, 30), mtime_ns=1_600_000_000_000_000_003),
    b"latest": Entry(Op.SYMLINK, 0o777, -1, target=b"train/cat.txt"),
    b"test/dog.txt": file_of((1, 30, 4), mtime_ns=1_600_000_000_000_000_004),
}
"""An explicit folder and an implicit one, files of no, one and two extents, a link."""


def entry_table(tree: Tree, chunks: int = 2) -> EntryTable:
    """The table of a tree, as a metadata store gives it."""
    paths = sorted(tree, key=split_path)
    entries = [tree[path] for path in paths]
    singles = [entry.extents[0] if len(entry.extents) == 1 else None for entry in entries]
    sizes = [sum(extent.length for extent in entry.extents) for entry in entries]
    extents = [
        (row, extent)
        for row, entry in enumerate(entries)
        if len(entry.extents) > 1
        for extent in entry.extents
    ]
    return EntryTable(
        DatasetRecord(DATASET_ID, "pets", 7, 1_700_000_000_000_000_000, len(paths), sum(sizes), chunks),
        [
            ChunkRecord(
                (chunk + 1).to_bytes(16, "big"), 0, 1000, PAYLOAD_BYTES, digest_of(bytes([chunk])), 0, 0, b""
            )
            for chunk in range(chunks)
        ],
        [split_path(path)[0] for path in paths],
        [split_path(path)[1] for path in paths],
        np.array([entry.op for entry in entries], np.uint8),
        np.array([entry.mode for entry in entries], np.uint32),
        np.array([entry.mtime_ns for entry in entries], np.int64),
        np.array(sizes, np.uint64),
        np.array([extent.chunk if extent else -1 for extent in singles], np.int64),
        np.array([extent.offset if extent else 0 for extent in singles], np.uint32),
        np.array([extent.digest if extent else NO_DIGEST for extent in singles], EXTENT_DIGESTS),
        {row: entry.target for row, entry in enumerate(entries) if entry.op is Op.SYMLINK},
        ExtentColumns(
            np.array([row for row, _ in extents], np.int64),
            np.array([extent.place for _, extent in extents], np.uint64),
            np.array([extent.chunk for _, extent in extents], np.int64),
            np.array([extent.offset for _, extent in extents], np.uint32),
            np.array([extent.length for _, extent in extents], np.uint32),
            np.array([extent.digest for _, extent in extents], EXTENT_DIGESTS),
        ),
    )


def snapshot_bytes(tree: Tree, chunks: int = 2) -> bytes:
    return build_snapshot(entry_table(tree, chunks))


def in_memory(write: Callable[[BinaryIO], object]) -> bytes:
    """The bytes that are written."""
    file = BytesIO()
    write(file)
    return file.getvalue()


def with_delta(base: Snapshot, delta: Delta) -> bytes:
    """The snapshot file that a delta makes of `base`."""
    return in_memory(lambda file: apply_delta(base, delta, "delta", file))


def visible(tree: Tree) -> dict[bytes, Entry]:
    """The entries that a snapshot of `tree` must have, in the order of its nodes, computed with a dict only."""
    shown = dict(tree)
    for path in [b"", *tree]:
        folder = split_path(path)[0] if path else path
        while folder not in shown or shown[folder].op is not Op.DIRECTORY:
            shown[folder] = Entry(Op.DIRECTORY, IMPLICIT_FOLDER_MODE, -1)  # its time is computed below
            folder = split_path(folder)[0]
    ordered = sorted(shown, key=lambda path: (len(path.split(b"/")) if path else 0, path.split(b"/")))
    for path in reversed(ordered):
        if shown[path].op is Op.DIRECTORY and tree.get(path) != shown[path]:
            inside = [shown[other].mtime_ns for other in ordered if other and split_path(other)[0] == path]
            shown[path] = replace(shown[path], mtime_ns=max(0, *inside) if inside else 0)
    return {path: shown[path] for path in ordered}


def with_columns(data: bytes, **columns: npt.NDArray[Any]) -> bytes:
    """The snapshot with whole columns replaced, and all digests corrected."""
    snapshot = Snapshot(data, SOURCE)
    header = snapshot.header
    numbers = {
        "generation": header.generation,
        "updated_ns": header.updated_ns,
        "nodes": header.nodes,
        "files": header.files,
        "total_bytes": header.total_bytes,
        "extents": header.extents,
        "links": header.links,
        "chunks": header.chunks,
        "hash_bits": header.hash_bits,
    }
    pinned = {name: snapshot.column(name) for name in SECTION_TYPES}
    return encode_snapshot(header, numbers, {**pinned, **columns})


def with_element(data: bytes, column: str, index: int, value: int) -> bytes:
    """The snapshot with one element of one column replaced, and all digests corrected."""
    values = Snapshot(data, SOURCE).column(column).copy()
    values[index] = value.to_bytes(values.itemsize, "little") if values.dtype.kind == "V" else value
    return with_columns(data, **{column: values})
