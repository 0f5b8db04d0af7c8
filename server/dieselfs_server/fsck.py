"""Compares chunks, metadata and snapshots with each other, both ways, and mends what can be mended. Blocks.

The judge is a metadata store of its own, made for the check from the headers of all chunks: what the dataset
must be by the one rule that there is. Chunks that cannot be read are named with the files that are lost with
them; nothing mends these.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dieselfs.chunk.format import ChunkHeader, Preamble, decode_chunk
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Damaged, DieselfsError, NotFound
from dieselfs.limits import REPORT_LINES_MAX
from dieselfs.meta.records import DatasetRecord, EntryTable
from dieselfs.meta.snapshot import Snapshot
from dieselfs.meta.snapshot_builder import build_snapshot
from dieselfs.names import printable
from dieselfs.rpc.records import FsckReport, Problem
from dieselfs_server.commit import read_header
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite import SqliteMetadata
from dieselfs_server.rebuild import rebuild, report_line
from dieselfs_server.snapshots import SnapshotShelf
from dieselfs_server.store.interface import ObjectStore

log = logging.getLogger(__name__)


@dataclass
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    count: int = 0
    unmended: int = 0

    def add(self, kind: str, what: str, is_mended: bool = False) -> None:
        log.warning("fsck: %s: %s%s", kind, what, " (mended)" if is_mended else "")
        self.count += 1
        self.unmended += not is_mended
        if len(self.problems) < REPORT_LINES_MAX:
            self.problems.append(Problem(kind, report_line(what), is_mended))


def fsck(
    store: ObjectStore,
    metadata: MetadataStore,
    shelf: SnapshotShelf,
    dataset: DatasetRecord,
    scratch: Path,
    now_ns: int,
    is_deep: bool,
    is_repair: bool,
) -> FsckReport:
    """Check a dataset; with `is_deep` every byte of every chunk, with `is_repair` mend what can be mended.

    `scratch` is a folder with room for the metadata once more. Nobody may write meanwhile, or what is written
    just then is reported as a difference.
    """
    findings = _Findings()
    with _judge(scratch, dataset) as judge:
        stored, unreadable, total_bytes = _read_chunks(store, dataset, judge, findings, now_ns, is_deep)
        _compare_chunks(store, metadata, dataset, stored, unreadable, findings, now_ns, is_repair)
        expected = judge.entry_table(dataset.dataset_id)
        differing = _differences(expected, metadata.entry_table(dataset.dataset_id), unreadable)
        is_mended = is_repair and bool(differing)
        if is_mended:
            rebuild(store, metadata, dataset.name, dataset.dataset_id, now_ns)
        for path in differing:
            findings.add("metadata", f"{path} is not what the chunks say", is_mended)
    _check_snapshot(metadata, shelf, dataset, findings, is_repair)
    return FsckReport(
        len(stored),
        len(expected.ops),
        total_bytes,
        findings.count,
        findings.unmended,
        tuple(findings.problems),
    )


@contextmanager
def _judge(scratch: Path, dataset: DatasetRecord) -> Iterator[SqliteMetadata]:
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix="fsck-", dir=scratch) as folder,
        closing(SqliteMetadata(f"{folder}/judge.db")) as judge,
    ):
        judge.create_dataset(dataset.name, dataset.dataset_id)
        yield judge


def _read_chunks(
    store: ObjectStore,
    dataset: DatasetRecord,
    judge: MetadataStore,
    findings: _Findings,
    now_ns: int,
    is_deep: bool,
) -> tuple[set[bytes], set[bytes], int]:
    """Read every stored chunk into the judge; returns `(readable, unreadable, bytes)`."""
    readable, unreadable, total_bytes = set(), set(), 0
    read: Callable[[ObjectStore, bytes, bytes], tuple[Preamble, ChunkHeader]] = (
        _read_whole if is_deep else _read_size
    )
    for chunk_id in store.list_chunks(dataset.dataset_id):
        try:
            preamble, header = read(store, dataset.dataset_id, chunk_id)
        except (Damaged, NotFound) as error:
            unreadable.add(chunk_id)
            findings.add("chunk", str(error))
            _apply_what_is_left(store, dataset, judge, chunk_id, now_ns)
            continue
        judge.apply(dataset.dataset_id, preamble, header, now_ns)
        readable.add(chunk_id)
        total_bytes += preamble.object_length
    return readable, unreadable, total_bytes


def _apply_what_is_left(
    store: ObjectStore, dataset: DatasetRecord, judge: MetadataStore, chunk_id: bytes, now_ns: int
) -> None:
    """A chunk with a damaged payload still says what is in it."""
    try:
        judge.apply(dataset.dataset_id, *read_header(store, dataset.dataset_id, chunk_id), now_ns)
    except DieselfsError:
        log.info("fsck: the header of chunk %s is gone too", chunk_name(chunk_id))


def _read_size(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> tuple[Preamble, ChunkHeader]:
    preamble, header = read_header(store, dataset_id, chunk_id)
    size = store.size(dataset_id, chunk_id)
    if size != preamble.object_length:
        raise Damaged(
            f"chunk {chunk_name(chunk_id)}: {size} bytes, the preamble announces {preamble.object_length}"
        )
    return preamble, header


def _read_whole(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> tuple[Preamble, ChunkHeader]:
    data = store.get_range(dataset_id, chunk_id, 0, store.size(dataset_id, chunk_id))
    preamble, header, _ = decode_chunk(data, f"chunk {chunk_name(chunk_id)}", chunk_id, dataset_id)
    return preamble, header


def _compare_chunks(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    stored: set[bytes],
    unreadable: set[bytes],
    findings: _Findings,
    now_ns: int,
    is_repair: bool,
) -> None:
    applied = {chunk.chunk_id: chunk for chunk in metadata.chunks(dataset.dataset_id)}
    for chunk_id in sorted(stored - set(applied)):
        if is_repair:
            metadata.apply(dataset.dataset_id, *read_header(store, dataset.dataset_id, chunk_id), now_ns)
        findings.add("chunk", f"chunk {chunk_name(chunk_id)} is stored, but not applied", is_repair)
    for chunk_id in sorted(set(applied) - stored - unreadable):
        chunk = applied[chunk_id]
        if chunk.deleted_entries == chunk.entries:
            if is_repair:
                metadata.forget_chunk(dataset.dataset_id, chunk_id)
            findings.add(
                "chunk", f"chunk {chunk_name(chunk_id)} is dead and gone, but has a record", is_repair
            )
        else:
            findings.add("chunk", f"chunk {chunk_name(chunk_id)} is missing")
    lost = (set(applied) - stored) | unreadable
    table = metadata.entry_table(dataset.dataset_id)
    for path in _files_in(table, lost):
        findings.add("file", f"{path} lies in a chunk that is damaged or missing")


def _files_in(table: EntryTable, chunk_ids: set[bytes]) -> list[str]:
    """Paths of the files that need one of these chunks."""
    numbers = [n for n, chunk in enumerate(table.chunk_table) if chunk.chunk_id in chunk_ids]
    rows = np.flatnonzero(np.isin(table.chunks, numbers))
    in_pieces = table.pieces.rows[np.isin(table.pieces.chunks, numbers)]
    return [_path(table, int(row)) for row in np.unique(np.concatenate((rows, in_pieces)))]


def _path(table: EntryTable, row: int) -> str:
    folder, name = table.folders[row], table.names[row]
    return printable(folder + b"/" + name if folder else name)


def _differences(expected: EntryTable, actual: EntryTable, unreadable: set[bytes]) -> list[str]:
    """Paths that differ between the two tables, apart from files in chunks that could not be read."""
    if _digest(expected) == _digest(actual):
        return []
    excused = set(_files_in(actual, unreadable))
    wanted, found = (_rows(table) for table in (expected, actual))
    return sorted(
        path
        for path in wanted.keys() | found.keys()
        if wanted.get(path) != found.get(path) and path not in excused
    )


def _digest(table: EntryTable) -> bytes:
    """Of everything in the table but when and how it came to be."""
    dataset = replace(table.dataset, generation=0, updated_ns=0)
    return Snapshot(build_snapshot(replace(table, dataset=dataset)), "fsck").digest


def _rows(table: EntryTable) -> dict[str, tuple[object, ...]]:
    ids = [chunk.chunk_id for chunk in table.chunk_table] + [b""]  # row -1: none
    pieces: dict[int, list[tuple[object, ...]]] = {}
    columns = table.pieces
    for row, place, chunk, offset, length, checksum in zip(
        columns.rows.tolist(),
        columns.places.tolist(),
        columns.chunks.tolist(),
        columns.offsets.tolist(),
        columns.lengths.tolist(),
        columns.checksums.tolist(),
        strict=True,
    ):
        pieces.setdefault(row, []).append((place, ids[chunk], offset, length, checksum))
    numbers = zip(
        table.ops.tolist(),
        table.modes.tolist(),
        table.mtimes_ns.tolist(),
        table.sizes.tolist(),
        table.chunks.tolist(),
        table.offsets.tolist(),
        table.checksums.tolist(),
        strict=True,
    )
    return {
        _path(table, row): (
            op,
            mode,
            mtime,
            size,
            ids[chunk],
            offset,
            checksum,
            table.targets.get(row),
            pieces.get(row),
        )
        for row, (op, mode, mtime, size, chunk, offset, checksum) in enumerate(numbers)
    }


def _check_snapshot(
    metadata: MetadataStore,
    shelf: SnapshotShelf,
    dataset: DatasetRecord,
    findings: _Findings,
    is_repair: bool,
) -> None:
    kept = shelf.kept(metadata.dataset(dataset.name))
    if (
        kept is not None
        and kept.digest != Snapshot(build_snapshot(metadata.entry_table(dataset.dataset_id)), "fsck").digest
    ):
        if is_repair:
            shelf.drop(dataset.dataset_id)
        findings.add(
            "snapshot",
            f"the snapshot of generation {kept.generation} is not what the metadata says",
            is_repair,
        )
