"""Purge: copies live entries out of chunks with dead entries, and removes dead chunks. All functions block.

Two phases protect readers of older snapshots. First, live entries are copied with their versions; of equal versions the
newer chunk counts, so the old chunk is dead from then on. A later purge removes a chunk that has been dead for the
grace time: first its object, then its record. After a crash at any point, the next purge continues, and a rebuild from
the chunks gives the same dataset.

A chunk to which others refer stays as it is (`datasets/references.py`). Of a chunk that refers, live entries are copied
out with their bytes: so no deleted file stays in a payload longer than it would without references. A chunk and those
of its own dataset that refer to it are a group. A group stays while each byte of a file counts in one of its chunks;
then its live entries are copied together, and share their bytes again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import closing, suppress

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.chunk.format import ChunkHeader, Op, check_extents
from dieselfs.chunk.ids import ChunkIdSource, chunk_name, chunk_time_s
from dieselfs.errors import NotFound, StorageFull
from dieselfs.limits import REPORT_LINES_MAX
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.records import PurgeReport
from dieselfs.units import count
from dieselfs_server.datasets.commit import (
    Admission,
    ChunkWriter,
    any_chunk,
    read_chunk,
    read_header,
    read_preamble,
)
from dieselfs_server.datasets.references import References
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import Pin, live_pins
from dieselfs_server.maintenance.attachments import attached_chunks, source_of
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order

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
    groups = _groups(chunks, references.within(dataset.dataset_id))
    held_groups, split = _split(store, dataset.dataset_id, groups, set().union(*tagged.values()), referred)
    needed |= held_groups
    tied = {chunk.chunk_id for group in groups for chunk in group} - held_groups
    with_holes = [
        chunk for chunk in chunks if 0 < chunk.deleted_entries < chunk.entries and chunk.chunk_id not in tied
    ]
    # A chunk of a foreign source takes no room for what was deleted, so it stays.
    with closing(read_in_order(_is_foreign, store, dataset.dataset_id, _by_id(with_holes))) as found:
        foreign = {chunk_id for chunk_id, is_foreign in found if is_foreign.result()}
    with_gaps = [chunk for chunk in with_holes if chunk.chunk_id not in foreign]
    # A chunk that a tag or a reference needs stays, so copies of what is live in it would only take more room.
    held = [chunk for chunk in with_gaps if chunk.chunk_id in needed]
    holed = [chunk for chunk in with_gaps if chunk.chunk_id not in needed]
    rewritten = len(holed) + len(split)
    expired = removable(dead, pins, needed, died_before_ns)
    with closing(read_in_order(_size, store, dataset.dataset_id, _by_id(expired))) as sizes:
        lengths = {chunk_id: size.result() for chunk_id, size in sizes}
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
            _rewrite(store, metadata, dataset, now_ns, split, proceed, admitted, is_sharing=True)
        except StorageFull as error:
            if not expired:
                raise
            log.warning(
                "purge of %s removed %d chunks, and ended early: %s", dataset.name, len(expired), error
            )
    return PurgeReport(
        chunks_rewritten=rewritten,
        chunks_removed=len(expired),
        chunks_waiting=len(dead) - len(expired) + rewritten + len(held),
        bytes_freed=sum(lengths[chunk.chunk_id] for chunk in expired),
        held_by=holders(
            [chunk for chunk in dead if chunk.updated_ns <= died_before_ns], held, pins, tagged, referred
        ),
    )


def _by_id(chunks: Iterable[ChunkRecord]) -> list[bytes]:
    return [chunk.chunk_id for chunk in chunks]


def _groups(chunks: Sequence[ChunkRecord], own: Mapping[bytes, Set[bytes]]) -> list[list[ChunkRecord]]:
    """Each chunk to which others of the dataset refer, and then these. `own`: as of `References.within`."""
    known = {chunk.chunk_id: chunk for chunk in chunks}
    return [
        [known[source], *(known[each] for each in sorted(refers & known.keys()))]
        for source, refers in own.items()
        if source in known and refers & known.keys()
    ]


def _split(
    store: ObjectStore,
    dataset_id: bytes,
    groups: Sequence[Sequence[ChunkRecord]],
    tagged: Set[bytes],
    referred: Mapping[bytes, Set[bytes]],
) -> tuple[set[bytes], list[ChunkRecord]]:
    """The live chunks of groups that tags or other datasets hold, and of those with bytes that count no more."""
    held, found = set[bytes](), list[ChunkRecord]()
    for group in groups:
        live = [chunk for chunk in group if chunk.deleted_entries < chunk.entries]
        has_others = referred.get(group[0].chunk_id, set()) - {dataset_id}
        if has_others or not tagged.isdisjoint(chunk.chunk_id for chunk in group):
            held.update(chunk.chunk_id for chunk in live)
        elif any(chunk.deleted_entries for chunk in group) and _has_dead_bytes(store, dataset_id, group):
            found += live
    return held, found


def _has_dead_bytes(store: ObjectStore, dataset_id: bytes, group: Sequence[ChunkRecord]) -> bool:
    starts, ends, is_counted = list[Numbers](), list[Numbers](), list[npt.NDArray[np.bool_]]()
    try:
        begin = read_preamble(store, dataset_id, group[0].chunk_id).payload_start
        with closing(read_in_order(read_header, store, dataset_id, _by_id(group))) as found:
            headers = [header.result()[1] for _, header in found]
    except NotFound:  # fsck tells which files are lost
        return False
    for chunk, header in zip(group, headers, strict=True):
        is_file, moved = header.ops == Op.FILE, header.source.offset - begin if header.source else 0
        starts.append(header.offsets[is_file].astype(np.int64) + moved)
        ends.append(starts[-1] + header.lengths[is_file])
        is_counted.append(is_live_of(chunk)[is_file])
    first, last, counts = np.concatenate(starts), np.concatenate(ends), np.concatenate(is_counted)
    return _covered_bytes(first[counts], last[counts]) < _covered_bytes(first, last)


def _covered_bytes(starts: Numbers, ends: Numbers) -> int:
    """Of ranges, which may overlap."""
    order = np.argsort(starts)
    reached = np.maximum.accumulate(ends[order]) if len(order) else ends
    before = np.concatenate([starts[order[:1]], reached[:-1]])
    return int((reached - np.maximum(starts[order], before)).clip(0).sum())


def is_live_of(chunk: ChunkRecord) -> npt.NDArray[np.bool_]:
    """Which entries count: shape (entries,)."""
    bits = np.frombuffer(chunk.deleted, np.uint8)
    is_dead = np.unpackbits(bits, count=chunk.entries, bitorder="little").view(np.bool_)
    return np.logical_not(is_dead)


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
    is_sharing: bool = False,
) -> None:
    """Copy the live entries of these chunks into new ones. `is_sharing`: equal ones share their bytes there."""
    ids = ids_after((chunk.chunk_id for chunk in chunks), lambda: now_ns)
    proceed.expect(len(chunks))

    def stored(_entries: int, _bytes: int) -> None:  # a chunk with the same bytes for many files becomes many
        proceed.check()

    writer = ChunkWriter(store, metadata, ids, dataset, lambda: now_ns, admitted, stored, has_versions=True)
    writer.builder.is_sharing = is_sharing
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


def _is_foreign(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> bool:
    """Whether a chunk is attached to what is no chunk. Raises NotFound, Damaged."""
    source = source_of(store, dataset_id, chunk_id)
    return source is not None and not source.is_chunk


def object_bytes(store: ObjectStore, _metadata: MetadataStore, dataset_id: bytes, proceed: Proceed) -> int:
    """What the objects of a dataset take in the store."""
    total_bytes = 0
    with closing(read_in_order(_size, store, dataset_id, store.list_chunks(dataset_id))) as sizes:
        for _, size in sizes:
            proceed.check()
            total_bytes += size.result()
    return total_bytes


def _size(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> int:
    with suppress(NotFound):  # removed meanwhile, or before a crash
        return store.size(dataset_id, chunk_id)
    return 0


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
