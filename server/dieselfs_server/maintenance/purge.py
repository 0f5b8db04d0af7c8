"""Purge: copies live entries out of chunks with dead entries, and removes dead chunks. All functions block.

Two phases protect readers of older snapshots. First, live entries are copied with their versions; of equal versions the
newer chunk counts, so the old chunk is dead from then on. A later purge removes a chunk that has been dead for the
grace time: first its object, then its record. After a crash at any point, the next purge continues, and a rebuild from
the chunks gives the same dataset.

A chunk to which others refer stays as it is (`datasets/references.py`). Of a chunk that refers, live entries are copied
out with their bytes: so no deleted file stays in a payload longer than it would without references.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress

from dieselfs.chunk.format import PREAMBLE_BYTES, ChunkHeader, Op, check_extents
from dieselfs.chunk.ids import ChunkIdSource, chunk_name, chunk_time_s
from dieselfs.errors import Damaged, NotFound, StorageFull
from dieselfs.limits import REPORT_LINES_MAX
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.records import PurgeReport
from dieselfs.units import count
from dieselfs_server.datasets.commit import Admission, ChunkWriter, any_chunk, read_chunk, read_preamble
from dieselfs_server.datasets.references import References
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import Pin, live_pins
from dieselfs_server.maintenance.attachments import attached_chunks, source_of
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

log = logging.getLogger(__name__)


def purge(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    tags: TagStore,
    now_ns: int,
    grace_s: int,
    is_dry_run: bool,
    admitted: Admission = any_chunk,
    proceed: Proceed | None = None,
) -> PurgeReport:
    """Purge a dataset; with `is_dry_run` only report. Where there is no room for copies of live entries, it frees what
    it can; a later purge continues.

    Raises Damaged if a tag, or a chunk with dead entries, is damaged.
    """
    chunks = metadata.chunks(dataset.dataset_id)
    dead = [chunk for chunk in chunks if chunk.deleted_entries == chunk.entries]
    pins, tagged = (
        live_pins(metadata, dataset.dataset_id, now_ns),
        tags.needed_chunks(dataset.name, dataset.dataset_id),
    )
    died_before_ns = now_ns - grace_s * 10**9
    references, now_s = References(store), now_ns // 10**9
    referred = references.to(dataset.dataset_id, now_s)
    needed = set(referred).union(*tagged.values())
    with_holes = [chunk for chunk in chunks if 0 < chunk.deleted_entries < chunk.entries]
    # A chunk of a foreign source takes no room for what was deleted, so it stays.
    with_gaps = [chunk for chunk in with_holes if not _is_foreign(store, dataset.dataset_id, chunk.chunk_id)]
    # A chunk that a tag or a reference needs stays, so copies of what is live in it would only take more room.
    held = [chunk for chunk in with_gaps if chunk.chunk_id in needed]
    holed = [chunk for chunk in with_gaps if chunk.chunk_id not in needed]
    expired = removable(dead, pins, needed, died_before_ns)
    lengths = {chunk.chunk_id: _stored_bytes(store, dataset.dataset_id, chunk) for chunk in expired}
    if not is_dry_run:
        proceed = proceed or Proceed()
        proceed.expect(len(expired))
        erased = set[bytes]()

        def forget(chunk_id: bytes) -> None:
            metadata.forget_chunk(dataset.dataset_id, chunk_id)
            erased.add(chunk_id)

        references.erase(dataset.dataset_id, list(lengths), now_s, forget, proceed)
        expired = [chunk for chunk in expired if chunk.chunk_id in erased]
        references.erase_remains(now_s)
        try:
            _rewrite(store, metadata, dataset, now_ns, holed, proceed, admitted)
        except StorageFull as error:
            if not expired:
                raise
            log.warning(
                "purge of %s removed %d chunks, and ended early: %s", dataset.name, len(expired), error
            )
    return PurgeReport(
        chunks_rewritten=len(holed),
        chunks_removed=len(expired),
        chunks_waiting=len(dead) - len(expired) + len(holed) + len(held),
        bytes_freed=sum(lengths[chunk.chunk_id] for chunk in expired),
        held_by=holders(
            [chunk for chunk in dead if chunk.updated_ns <= died_before_ns], held, pins, tagged, referred
        ),
    )


def copy_attached(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    now_ns: int,
    is_dry_run: bool,
    proceed: Proceed | None = None,
) -> int:
    """Copy the live entries of attached chunks, with their bytes, into ordinary ones; returns the number of attached
    chunks. A later purge removes these.

    Raises Damaged at a source that cannot be read; what is copied by then stays.
    """
    proceed = proceed or Proceed()
    found = attached_chunks(store, metadata, dataset.dataset_id, proceed)
    attached = [chunk.record for chunk in found]
    if not is_dry_run:
        _rewrite(store, metadata, dataset, now_ns, attached, proceed)
    return len(attached)


def _rewrite(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    now_ns: int,
    chunks: Sequence[ChunkRecord],
    proceed: Proceed,
    admitted: Admission = any_chunk,
) -> None:
    """Copy the live entries of these chunks into new ones."""
    ids = ids_after((chunk.chunk_id for chunk in chunks), lambda: now_ns)
    proceed.expect(len(chunks))

    def stored(_entries: int, _bytes: int) -> None:  # a chunk with the same bytes for many files becomes many
        proceed.check()

    writer = ChunkWriter(store, metadata, ids, dataset, lambda: now_ns, admitted, stored, has_versions=True)
    for chunk in chunks:
        proceed()
        preamble, header, payload = read_chunk(store, dataset.dataset_id, chunk.chunk_id)
        check_extents(preamble, header, payload, f"chunk {chunk_name(chunk.chunk_id)}", proceed.check)
        writer.builder.is_sharing |= int(header.lengths[header.ops == Op.FILE].sum()) > len(payload)
        for entry in range(chunk.entries):
            if not chunk.deleted[entry // 8] >> entry % 8 & 1:
                start = int(header.offsets[entry])
                copy_entry(writer, header, entry, bytes(payload[start : start + int(header.lengths[entry])]))
    writer.write()


def ids_after(copied: Iterable[bytes], now_ns: Callable[[], int]) -> ChunkIdSource:
    """IDs for copies of the chunks with these IDs. Of equal versions the larger chunk ID counts, so the copies need
    larger ones, even if the clocks of the original writers were ahead.
    """
    newest_s = max(map(chunk_time_s, copied), default=0)
    return ChunkIdSource(lambda: max(now_ns() // 10**9, newest_s + 1))


def copy_entry(writer: ChunkWriter, header: ChunkHeader, entry: int, content: bytes) -> None:
    """Copy an entry with its version, compressed as its chunk is. `content`: of a file, its bytes here."""
    writer.make_room(int(header.lengths[entry]))
    writer.compress_as(header.frames)
    path, version, builder = header.paths[entry], int(header.versions[entry]), writer.builder
    mode, mtime_ns = int(header.modes[entry]), int(header.mtimes_ns[entry])
    match Op(int(header.ops[entry])):
        case Op.FILE:
            size, place = int(header.sizes[entry]), int(header.places[entry])
            builder.add_file(path, content, mode, mtime_ns, size, place, version)
        case Op.DIRECTORY:
            builder.add_directory(path, mode, mtime_ns, version)
        case Op.SYMLINK:
            builder.add_symlink(path, header.target(entry), mode, mtime_ns, version)
        case Op.DELETE:
            builder.add_delete(path, version)


def _stored_bytes(store: ObjectStore, dataset_id: bytes, chunk: ChunkRecord) -> int:
    """Of a chunk without its preamble; none, if its object is damaged or was removed before a crash."""
    with suppress(NotFound, Damaged):
        return read_preamble(store, dataset_id, chunk.chunk_id).stored_length - PREAMBLE_BYTES
    return 0


def _is_foreign(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> bool:
    """Whether a chunk is attached to what is no chunk. Raises NotFound, Damaged."""
    source = source_of(store, dataset_id, chunk_id)
    return source is not None and not source.is_chunk


def removable(
    dead: Sequence[ChunkRecord], pins: Sequence[Pin], tagged: Set[bytes], died_before_ns: int
) -> list[ChunkRecord]:
    """The dead chunks that no reader can need: not tagged, dead before `died_before_ns` and before the oldest pin."""
    oldest_ns = min([died_before_ns, *(pin.updated_ns for pin in pins)])
    return [chunk for chunk in dead if chunk.updated_ns <= oldest_ns and chunk.chunk_id not in tagged]


def holders(
    dead: Sequence[ChunkRecord],
    held: Sequence[ChunkRecord],
    pins: Sequence[Pin],
    tagged: Mapping[str, Set[bytes]],
    referred: Mapping[bytes, Set[bytes]],
) -> tuple[str, ...]:
    """The tags, pins and copies that hold dead chunks which are older than the grace time, and the tags and copies that
    hold chunks with dead entries: at most REPORT_LINES_MAX. Names of other datasets are left out: they are no matter of
    the users of this one.
    """
    chunk_ids = {chunk.chunk_id for chunk in (*dead, *held)}
    newest_ns = max((chunk.updated_ns for chunk in dead), default=0)
    found = [f"tag {name}" for name, needed in tagged.items() if needed & chunk_ids]
    found += [f"pin of {pin.holder}" for pin in pins if pin.updated_ns < newest_ns]
    if datasets := set().union(*(referred[chunk_id] for chunk_id in chunk_ids & referred.keys())):
        found.append(f"copies without bytes of their own in {count(len(datasets), 'dataset')}")
    return tuple(found[:REPORT_LINES_MAX])
