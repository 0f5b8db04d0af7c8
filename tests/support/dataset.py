"""A dataset without a server: trees packed into chunks with the real builder, the snapshot built from their headers.

`pack_tree` packs a folder of the local file system. `PackedDataset.source` returns the chunks, verified as by the real
reader; tests can damage them.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.blocks import bytes_of
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import PREAMBLE_BYTES, ChunkHeader, Op, Preamble, decode_header, decode_preamble
from dieselfs.chunk.ids import CHUNK_ID_BYTES, chunk_name
from dieselfs.digests import EXTENT_DIGESTS, digest_of, extent_digest_of
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.names import split_path
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable, ExtentColumns
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.interface import Arrival, Slices, Wanted

DATASET_ID = bytes(range(16))


@dataclass(frozen=True)
class TreeEntry:
    """One entry to pack. `content` is a file's bytes or a link's target."""

    path: bytes
    mode: int
    mtime_ns: int
    content: bytes = b""


def read_tree(root: str | Path) -> Iterator[TreeEntry]:
    """Every entry below `root`, and `root` itself as the root, in no order."""
    top = os.fsencode(root)
    pending = [b""]
    while pending:
        folder = pending.pop()
        place = os.path.join(top, folder)
        status = os.lstat(place)
        yield TreeEntry(folder, status.st_mode, status.st_mtime_ns)
        with os.scandir(place) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                status = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif entry.is_symlink():
                    yield TreeEntry(path, status.st_mode, status.st_mtime_ns, os.readlink(entry.path))
                else:
                    yield TreeEntry(
                        path, status.st_mode, status.st_mtime_ns, Path(os.fsdecode(entry.path)).read_bytes()
                    )


class MemoryChunkSource:
    """The chunks of a dataset in memory, verified against the snapshot as by the real reader.

    Tests may change `payloads`, to damage a chunk. Counts fetches. Can be pickled, for mounts in other processes.
    """

    def __init__(self, snapshot: Snapshot, payloads: dict[int, bytearray]) -> None:
        self.payloads = payloads
        self.fetched_chunks: list[int] = []
        self.fetched_extents: list[ExtentRef] = []
        self.fetched_blocks: list[tuple[int, int]] = []
        self._digests = [snapshot.chunk_digest(chunk) for chunk in range(snapshot.chunk_count)]
        self.chunk_names = [chunk_name(snapshot.chunk_id(chunk)) for chunk in range(snapshot.chunk_count)]

    def fetch_chunk(self, chunk: int) -> bytes:
        self.fetched_chunks.append(chunk)
        payload = bytes(self.payloads[chunk])
        if digest_of(payload) != self._digests[chunk]:
            raise Damaged(f"chunk {self.chunk_names[chunk]}: digest of the payload does not match")
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        destination[:] = self.fetch_chunk(chunk)

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        self.fetched_extents.append(extent)
        data = bytes(self.payloads[extent.chunk][extent.offset : extent.offset + extent.length])
        if extent_digest_of(data) != extent.digest:
            name = self.chunk_names[extent.chunk]
            raise Damaged(f"chunk {name}: payload offset {extent.offset}: digest of an extent does not match")
        return data

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        for chunk, extents in wanted.items():
            try:
                content = b"".join(map(self.fetch_extent, extents))
            except DieselfsError as error:
                yield {chunk: error}
            else:
                yield {chunk: Slices.joined(memoryview(content), extents)}

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        payload = self.payloads[chunk]
        if digest_of(payload) != self._digests[chunk]:
            raise Damaged(f"chunk {self.chunk_names[chunk]}: digest of the payload does not match")
        self.fetched_blocks += [(chunk, number) for number in range(first, end)]
        start, length = bytes_of(first, end, len(payload))
        return memoryview(bytes(payload[start : start + length]))

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return [[chunk] for chunk in chunks]


@dataclass(frozen=True)
class PackedDataset:
    """Chunk objects in the order of their IDs, and their snapshot."""

    objects: list[bytes]
    snapshot: Snapshot

    def source(self) -> MemoryChunkSource:
        payloads = {}
        for index, data in enumerate(self.objects):
            start = decode_preamble(data, f"chunk {index}").payload_start
            payloads[index] = bytearray(data[start:])
        return MemoryChunkSource(self.snapshot, payloads)


def pack_tree(root: str | Path, name: str = "packed", chunk_bytes: int = CHUNK_TARGET_BYTES) -> PackedDataset:
    """Pack the folder `root`. Equal trees give equal chunks."""
    return pack_entries(sorted(read_tree(root), key=lambda entry: entry.path), name, chunk_bytes)


def pack_entries(
    entries: Iterable[TreeEntry], name: str = "packed", chunk_bytes: int = CHUNK_TARGET_BYTES
) -> PackedDataset:
    """Pack entries in this order; a file that does not fit into a chunk is split into extents."""
    objects: list[bytes] = []
    builder = ChunkBuilder(chunk_bytes)

    def seal() -> None:
        number = len(objects) + 1
        parts = builder.seal().encode(number.to_bytes(CHUNK_ID_BYTES, "big"), name, DATASET_ID, number << 20)
        objects.append(b"".join(parts))

    for number, entry in enumerate(entries, start=1):
        if builder.is_full:
            seal()
        mode = stat.S_IMODE(entry.mode)
        if stat.S_ISDIR(entry.mode):
            builder.add_directory(entry.path, mode, entry.mtime_ns)
        elif stat.S_ISLNK(entry.mode):
            builder.add_symlink(entry.path, entry.content, mode, entry.mtime_ns)
        for place, content in _cut(entry, builder):
            builder.add_file(
                entry.path, content, mode, entry.mtime_ns, len(entry.content), place, version=number
            )
            if builder.is_full:
                seal()
    if len(builder):
        seal()
    return PackedDataset(objects, snapshot_of(objects, name))


def _cut(entry: TreeEntry, builder: ChunkBuilder) -> Iterator[tuple[int, bytes]]:
    """The extents of a file, as `(place, bytes)`. Each fills the chunk in the builder, which may change after each."""
    if stat.S_ISREG(entry.mode):
        place = 0
        while place < len(entry.content) or place == 0:
            content = entry.content[place : place + builder.room_bytes]
            yield place, content
            place += max(len(content), 1)


def snapshot_of(objects: list[bytes], name: str = "packed") -> Snapshot:
    """The snapshot of a dataset of these chunk objects, in the order of their IDs. Each path has one version."""
    records: list[ChunkRecord] = []
    extents: dict[bytes, list[tuple[int, int, ChunkHeader]]] = {}
    for index, data in enumerate(objects):
        preamble = decode_preamble(data, f"chunk {index}")
        header = decode_header(
            preamble, data[PREAMBLE_BYTES : preamble.payload_start], f"chunk {index}", DATASET_ID
        )
        records.append(_chunk_record(preamble, len(header)))
        for entry, path in enumerate(header.paths):
            extents.setdefault(path, []).append((index, entry, header))
    table = _entry_table(name, records, extents)
    snapshot = Snapshot(build_snapshot(table), f"snapshot of {name}")
    snapshot.verify()
    return snapshot


def _chunk_record(preamble: Preamble, entries: int) -> ChunkRecord:
    return ChunkRecord(
        preamble.chunk_id,
        1,
        preamble.header_length,
        preamble.payload_length,
        preamble.payload_digest,
        entries,
        0,
        bytes(-(-entries // 8)),
    )


def _entry_table(
    name: str, records: list[ChunkRecord], extents: dict[bytes, list[tuple[int, int, ChunkHeader]]]
) -> EntryTable:
    paths = sorted(extents, key=split_path)
    firsts = [extents[path][0] for path in paths]
    spans = [
        (row, *extent) for row, path in enumerate(paths) if len(extents[path]) > 1 for extent in extents[path]
    ]

    def first(column: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.array([getattr(header, column)[entry] for _, entry, header in firsts], dtype)

    def span(column: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.array([getattr(header, column)[entry] for _, _, entry, header in spans], dtype)

    ops, sizes = first("ops", np.uint8), first("sizes", np.uint64)
    chunks = np.array([chunk for chunk, _, _ in firsts], np.int64)
    chunks[ops != Op.FILE] = -1
    chunks[[row for row, _, _, _ in spans]] = -1
    files = sizes[ops == Op.FILE]
    return EntryTable(
        DatasetRecord(DATASET_ID, name, len(records), 1, len(files), int(files.sum()), len(records)),
        records,
        [split_path(path)[0] for path in paths],
        [split_path(path)[1] for path in paths],
        ops,
        first("modes", np.uint32),
        first("mtimes_ns", np.int64),
        sizes,
        chunks,
        first("offsets", np.uint32),
        first("digests", EXTENT_DIGESTS),
        {
            row: header.target(entry)
            for row, (_, entry, header) in enumerate(firsts)
            if ops[row] == Op.SYMLINK
        },
        ExtentColumns(
            np.array([row for row, _, _, _ in spans], np.int64),
            span("places", np.uint64),
            np.array([chunk for _, chunk, _, _ in spans], np.int64),
            span("offsets", np.uint32),
            span("lengths", np.uint32),
            span("digests", EXTENT_DIGESTS),
        ),
    )
