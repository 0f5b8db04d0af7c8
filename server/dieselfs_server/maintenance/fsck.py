"""Compares chunks, metadata and snapshots of a dataset with each other, and repairs differences. Blocks.

The reference is a temporary metadata store, made from the headers of all chunks. Unreadable chunks are reported with
the files that need them; these cannot be repaired.
"""

import errno
import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import numpy as np

from dieselfs.arrays import distinct
from dieselfs.chunk.bundle import bundle_of, is_bundle, is_bundled
from dieselfs.chunk.format import ChunkHeader, Preamble, check_extents
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Damaged, DieselfsError, NotFound, StorageFull
from dieselfs.limits import REPORT_LINES_MAX
from dieselfs.names import printable
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable
from dieselfs.rpc.records import FsckReport, Problem
from dieselfs.snapshot.builder import SnapshotBuilder
from dieselfs.units import count
from dieselfs_server.datasets.commit import check_size, read_chunk, read_header, versions_ahead
from dieselfs_server.datasets.dataset_names import DatasetNames, other_owner
from dieselfs_server.datasets.references import Pair, References, note_reference
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.maintenance.rebuild import rebuild, report_line
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import HEADERS_AT_ONCE, PAYLOADS_AT_ONCE, read_in_order

log = logging.getLogger(__name__)


def fsck(
    store: ObjectStore,
    metadata: MetadataStore,
    snapshots: SnapshotCache,
    tags: TagStore,
    dataset: DatasetRecord,
    scratch: Path,
    now_ns: int,
    is_deep: bool,
    is_repair: bool,
    proceed: Proceed | None = None,
) -> FsckReport:
    """Check a dataset; with `is_deep` read every byte of every chunk, with `is_repair` repair what is possible.

    `scratch` is a folder with room for a copy of the metadata. A concurrent write can be reported as a difference.
    """
    proceed = proceed or Proceed()
    proceed.expect(dataset.chunks)
    check = _Check(store, metadata, dataset, now_ns, is_deep, is_repair)
    with (
        _room_in(scratch),
        TemporaryDirectory(prefix="fsck-", dir=scratch) as folder,
        closing(SqliteMetadata(f"{folder}/reference.db")) as reference,
    ):
        reference.create_dataset(dataset.name, dataset.dataset_id)
        check.read_chunks(reference, proceed)
        proceed.check()
        check.compare_chunks()
        proceed.check()
        entries = check.compare_metadata(reference, folder, proceed)
        proceed.check()
        check.compare_snapshot(snapshots, folder)
    check.compare_tags(tags, proceed)
    check.compare_references()
    check.compare_name()
    if (ahead := versions_ahead(metadata, dataset, now_ns)) is not None:
        check.add("clock", ahead, is_mended=True)
    return FsckReport(
        len(check.readable),
        entries,
        check.total_bytes,
        check.problem_count,
        check.unmended_count,
        tuple(check.problems),
    )


@dataclass(eq=False)
class _Check:
    """One run of fsck, with its findings so far."""

    store: ObjectStore
    metadata: MetadataStore
    dataset: DatasetRecord
    now_ns: int
    is_deep: bool
    is_repair: bool
    readable: dict[bytes, Preamble] = field(default_factory=dict)
    """By the ID of the chunk."""
    unreadable: set[bytes] = field(default_factory=set)
    replaced: set[bytes] = field(default_factory=set)
    """IDs of valid chunks that are not those that were applied."""
    references: defaultdict[bytes, list[Pair]] = field(default_factory=lambda: defaultdict(list))
    """To chunks of datasets with these IDs."""
    total_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    unmended_count: int = 0

    def add(self, kind: str, what: str, is_mended: bool = False) -> None:
        log.warning("fsck: %s: %s%s", kind, what, " (repaired)" if is_mended else "")
        self.problem_count += 1
        self.unmended_count += not is_mended
        if len(self.problems) < REPORT_LINES_MAX:
            self.problems.append(Problem(kind, report_line(what), is_mended))

    def read_chunks(self, reference: MetadataStore, proceed: Proceed) -> None:
        """Apply every stored chunk to the reference."""
        dataset_id = self.dataset.dataset_id
        read, at_once = (read_chunk, PAYLOADS_AT_ONCE) if self.is_deep else (_read_size, HEADERS_AT_ONCE)
        listing = self.store.list_chunks(dataset_id)
        with closing(read_in_order(read, self.store, dataset_id, listing, at_once)) as chunks:
            for chunk_id, chunk in chunks:
                proceed()
                try:
                    preamble, header, payload = chunk.result()
                    if self.is_deep:
                        name = f"chunk {chunk_name(chunk_id)}"
                        check_extents(preamble, header, payload, name, proceed.check)
                except (Damaged, NotFound) as error:
                    self.unreadable.add(chunk_id)
                    self.add("chunk", self._damage(chunk_id, error))
                    try:  # the header of a chunk with a damaged payload may still be readable
                        reference.apply(
                            dataset_id, *read_header(self.store, dataset_id, chunk_id), self.now_ns
                        )
                    except DieselfsError:
                        log.info("fsck: the header of chunk %s cannot be read either", chunk_name(chunk_id))
                    continue
                reference.apply(dataset_id, preamble, header, self.now_ns)
                self.readable[chunk_id] = preamble
                self.total_bytes += preamble.object_length
                note_reference(self.references, chunk_id, header)

    def _damage(self, chunk_id: bytes, error: DieselfsError) -> str:
        """What is wrong with a chunk; of a bundle, also which applied chunks are in it."""
        if not is_bundle(chunk_id):
            return str(error)
        applied = sorted(chunk.chunk_id for chunk in self.metadata.chunks(self.dataset.dataset_id))
        held = [chunk_name(each) for each in applied if is_bundled(each) and bundle_of(each) == chunk_id]
        which = f", {held[0]} to {held[-1]}" if held else ""
        return f"{error}; it holds {count(len(held), 'chunk')}{which}: bring it back from a copy of the store"

    def compare_chunks(self) -> None:
        """Compare the stored chunks with the records of applied chunks."""
        dataset_id = self.dataset.dataset_id
        applied = {chunk.chunk_id: chunk for chunk in self.metadata.chunks(dataset_id)}
        # A damaged bundle is listed itself: its chunks are not missing.
        self.unreadable |= {
            each for each in applied if is_bundled(each) and bundle_of(each) in self.unreadable
        }
        for chunk_id in sorted(set(self.readable) - set(applied)):
            if self.is_repair:
                self.metadata.apply(dataset_id, *read_header(self.store, dataset_id, chunk_id), self.now_ns)
            self.add("chunk", f"chunk {chunk_name(chunk_id)} is stored, but not applied", self.is_repair)
        for chunk_id in sorted(set(applied) - set(self.readable) - self.unreadable):
            chunk = applied[chunk_id]
            if chunk.deleted_entries < chunk.entries:
                self.add("chunk", f"chunk {chunk_name(chunk_id)} is missing")
                continue
            if self.is_repair:
                self.metadata.forget_chunk(dataset_id, chunk_id)
            self.add(
                "chunk", f"dead chunk {chunk_name(chunk_id)} is removed, but has a record", self.is_repair
            )
        for chunk_id in sorted(set(self.readable) & set(applied)):
            if _is_replaced(self.readable[chunk_id], applied[chunk_id]):
                self.replaced.add(chunk_id)
                self.add(
                    "chunk", f"chunk {chunk_name(chunk_id)} is another one than the one that was applied"
                )
        lost = (set(applied) - set(self.readable)) | self.unreadable | self.replaced
        if lost:
            for path in _files_in(self.metadata.entry_table(dataset_id), lost):
                self.add("file", f"{path} needs a chunk that is damaged or missing")

    def compare_metadata(self, reference: MetadataStore, folder: str, proceed: Proceed) -> int:
        """Compare the entries with those of the reference; a repair rebuilds the metadata. Returns the number of
        entries in the reference. Only tables that differ are read into memory.
        """
        dataset_id, differing = self.dataset.dataset_id, list[str]()
        expected, entries = _digest(reference, dataset_id, folder)
        proceed.check()
        actual, _ = _digest(self.metadata, dataset_id, folder)
        proceed.check()
        if actual != expected:
            tables = reference.entry_table(dataset_id), self.metadata.entry_table(dataset_id)
            differing = _differences(*tables, self.unreadable)
        # A chunk that was replaced by a valid one may be a forgery: the metadata must not become its.
        is_mended = self.is_repair and bool(differing) and not self.replaced
        if is_mended:
            name, asked = self.dataset.name, Proceed(proceed.check)
            try:
                rebuild(self.store, self.metadata, name, dataset_id, self.now_ns, proceed=asked)
            except Damaged as error:
                is_mended = False
                self.add("metadata", str(error))
        for path in differing:
            self.add("metadata", f"{path} differs from the chunks", is_mended)
        return entries

    def compare_name(self) -> None:
        """The record of the name is that of this dataset; a missing one is made at the next start."""
        name, dataset_id = self.dataset.name, self.dataset.dataset_id
        try:
            owner = DatasetNames(self.store).find(name)
        except Damaged as error:
            self.add("name", str(error))
            return
        if owner not in (None, dataset_id):
            self.add("name", other_owner(name, owner, dataset_id))

    def compare_snapshot(self, snapshots: SnapshotCache, folder: str) -> None:
        """Compare the stored snapshot of the newest generation with the metadata."""
        dataset = self.metadata.dataset(self.dataset.name)
        stored = snapshots.kept(dataset)
        if stored is None:
            return
        digest, _ = _digest(self.metadata, dataset.dataset_id, folder, is_of_generation=True)
        if stored.digest != digest:
            if self.is_repair:
                snapshots.drop(self.dataset.dataset_id)
            what = f"the snapshot of generation {stored.generation} differs from the metadata"
            self.add("snapshot", what, self.is_repair)

    def compare_references(self) -> None:
        """Compare the references to other chunks with their records."""
        dataset_id, references = self.dataset.dataset_id, References(self.store)
        missing = references.unrecorded(dataset_id, self.references)
        if self.is_repair:
            references.record(dataset_id, missing, self.now_ns // 10**9)
        for source_id, pairs in missing.items():
            which = f"{count(len(pairs), 'reference')} to chunks of dataset {source_id.hex()}"
            self.add("chunk", f"{which} have no record, so a purge could erase these chunks", self.is_repair)

    def compare_tags(self, tags: TagStore, proceed: Proceed) -> None:
        """Compare the chunks that tags need with the digests that the servers have signed."""
        name, dataset_id = self.dataset.name, self.dataset.dataset_id
        for tag in tags.names(dataset_id):
            proceed.check()
            try:
                snapshot = tags.get(name, dataset_id, tag)
            except NotFound:  # removed meanwhile
                continue
            except Damaged as error:
                self.add("snapshot", str(error))
                continue
            for chunk in distinct(snapshot.column("extent_chunks")).tolist():
                chunk_id = snapshot.chunk_id(chunk)
                stored = self.readable.get(chunk_id)
                if stored is None and chunk_id not in self.unreadable:
                    self.add("chunk", f"chunk {chunk_name(chunk_id)}, which tag {tag} needs, is missing")
                elif stored is not None and stored.payload_digest != snapshot.chunk_digest(chunk):
                    self.add(
                        "chunk",
                        f"chunk {chunk_name(chunk_id)} is another one than the one that tag {tag} needs",
                    )


@contextmanager
def _room_in(scratch: Path) -> Iterator[None]:
    """Make the folder. Raises StorageFull with its name if it has no room for the block."""
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except (OSError, StorageFull) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFull(
            f"the server has no room for a check in {scratch}: it takes up to twice as much as the metadata; free "
            "space there, then retry"
        ) from None


def _is_replaced(stored: Preamble, applied: ChunkRecord) -> bool:
    lengths = (applied.header_length, applied.payload_length)
    return (stored.payload_digest, stored.header_length, stored.payload_length) != (
        applied.payload_digest,
        *lengths,
    )


def _read_size(
    store: ObjectStore, dataset_id: bytes, chunk_id: bytes
) -> tuple[Preamble, ChunkHeader, memoryview]:
    preamble, header = read_header(store, dataset_id, chunk_id)
    check_size(store, dataset_id, preamble)
    return preamble, header, memoryview(b"")


def _files_in(table: EntryTable, chunk_ids: set[bytes]) -> list[str]:
    """Paths of the files that need one of these chunks."""
    numbers = [n for n, chunk in enumerate(table.chunk_table) if chunk.chunk_id in chunk_ids]
    rows = np.flatnonzero(np.isin(table.chunks, numbers))
    spanning = table.extents.rows[np.isin(table.extents.chunks, numbers)]
    return [_path(table, int(row)) for row in distinct(np.concatenate((rows, spanning)))]


def _path(table: EntryTable, row: int) -> str:
    folder, name = table.folders[row], table.names[row]
    return printable(folder + b"/" + name if folder else name)


def _differences(expected: EntryTable, actual: EntryTable, unreadable: set[bytes]) -> list[str]:
    """Paths that differ between the two tables, without files in unreadable chunks."""
    differing = {path for path, _ in _rows(expected).items() ^ _rows(actual).items()}
    return sorted(differing.difference(_files_in(actual, unreadable)))


class _Entries(SnapshotBuilder):
    """Also counts the entries."""

    count = 0

    def add(self, block: EntryTable) -> None:
        self.count += len(block.ops)
        super().add(block)


def _digest(
    metadata: MetadataStore, dataset_id: bytes, folder: str, is_of_generation: bool = False
) -> tuple[bytes, int]:
    """Of the snapshot of all live entries, by default without generation and time; and the number of entries. They are
    spilled into `folder`. Raises StorageFull, OSError.
    """
    entries = metadata.read_entries(dataset_id, partial(_Entries, folder))
    if not is_of_generation:
        entries.dataset = entries.dataset._replace(generation=0, updated_ns=0)
    with TemporaryFile(dir=folder) as file:
        return entries.write(file), entries.count


def _rows(table: EntryTable) -> dict[str, tuple[object, ...]]:
    """All that the table has about each path, with chunks by ID."""
    ids = [chunk.chunk_id for chunk in table.chunk_table] + [b""]  # row -1: none
    extents: dict[int, list[tuple[object, ...]]] = {}
    spanning = table.extents
    columns = (spanning.rows, spanning.chunks, spanning.places, spanning.offsets, spanning.lengths)
    for row, chunk, *rest in zip(*(c.tolist() for c in (*columns, spanning.digests)), strict=True):
        extents.setdefault(row, []).append((ids[chunk], *rest))
    entries = (
        table.chunks,
        table.ops,
        table.modes,
        table.mtimes_ns,
        table.sizes,
        table.offsets,
        table.digests,
    )
    return {
        _path(table, row): (ids[chunk], *rest, table.targets.get(row), tuple(extents.get(row, ())))
        for row, (chunk, *rest) in enumerate(zip(*(column.tolist() for column in entries), strict=True))
    }
