"""Repack: stores the files of chunks that hold few strata in new chunks, each with all strata in proportion. Blocks.

Entries keep their versions, as in a purge: of equal versions the newer chunk counts, so each old chunk is dead once its
files are copied, readers of older generations keep it, and a purge after the grace time removes it. Content is copied
as it is stored, so keys of encrypted datasets are not needed. Chunks in proportion stay: after an interruption, those
that were written, so the same call continues.

In their chunks stay files of CHUNK_TARGET_BYTES or more that span chunks, files of attached archives, and what was
stored after the snapshot of the strata. Of a chunk that refers to another one, the bytes are copied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from dieselfs.arrays import Numbers, Ranges, distinct
from dieselfs.chunk.format import ChunkHeader, Op, Preamble
from dieselfs.chunk.ids import chunk_name
from dieselfs.digests import extent_digest_of
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import CHUNK_ENTRIES_MAX, CHUNK_TARGET_BYTES, MIB
from dieselfs.names import printable
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.records import RepackReport
from dieselfs.shuffle.strata import is_even, spread
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.storage_order import StorageOrder
from dieselfs.snapshot.subtree import files_below
from dieselfs_server.datasets.commit import Admission, ChunkWriter, read_header
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.maintenance.purge import copy_entry, ids_after, is_live_of
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.reading.executor import merge_ranges, span_of
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order

BATCH_BYTES = 64 * MIB
"""Files that are read together: a pass over the old chunks fills 16 new ones."""


StrataAt = Callable[[bytes, Numbers], Numbers]
"""Of a chunk ID and offsets in its payload: the stratum of the file at each, -1 for none."""


class _Old:
    """A chunk. `files`: the numbers of the entries with the first extents of files that may move, with their `strata`;
    `rests`: those with further extents; `others`: those without bytes. `is_holed`: some of its entries are dead.
    """

    def __init__(
        self, record: ChunkRecord, preamble: Preamble, header: ChunkHeader, strata_at: StrataAt
    ) -> None:
        self.chunk_id, self.payload_start, self.header = record.chunk_id, preamble.payload_start, header
        is_live, has_bytes = is_live_of(record), (header.ops == Op.FILE) & (header.lengths > 0)
        is_short = (header.lengths == header.sizes) | (header.sizes < CHUNK_TARGET_BYTES)
        is_moving = is_live & has_bytes & is_short
        files = np.flatnonzero(is_moving & (header.places == 0))
        strata = strata_at(record.chunk_id, header.offsets[files].astype(np.int64))
        self.files, self.strata = files[strata >= 0], strata[strata >= 0].astype(np.uint16)
        self.rests = np.flatnonzero(is_moving & (header.places > 0))
        self.others = np.flatnonzero(is_live & ~has_bytes)
        self.is_holed = record.deleted_entries > 0


def repack(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    snapshot: Snapshot,
    strata: bytes | bytearray,
    seed: int,
    chunk_bytes: int,
    now_ns: Callable[[], int],
    is_dry_run: bool,
    admitted: Admission,
    check_room: Callable[[int], None],
    proceed: Proceed,
) -> RepackReport:
    """Repack a dataset; with `is_dry_run` only report. `strata`: as `column_of` makes them of the snapshot, 2 bytes
    each, the lowest first. `chunk_bytes`: of the new chunks. `check_room` gets the bytes that it takes, and raises
    StorageFull if there is no room.

    Headers are held in memory: about 250 bytes for a file. Raises InvalidInput for strata of another snapshot, Damaged,
    StorageFull, Unavailable; then what is copied stays, and the same call continues.
    """
    olds = list(_survey(store, metadata, dataset, _strata_by_place(snapshot, strata), proceed))
    totals = np.bincount(np.concatenate([np.empty(0, np.uint16), *(old.strata for old in olds)]))
    chosen = [
        old
        for old in olds
        if len(old.files)
        and (old.is_holed or not is_even(np.bincount(old.strata, minlength=len(totals)), totals))
    ]
    if len(chosen) < 2:  # nothing to mix it with
        chosen = []
    kept = len(olds) - len(chosen)
    del olds
    files = sum(len(old.files) for old in chosen)
    moved = [np.concatenate([old.files, old.rests]) for old in chosen]
    payload_bytes = sum(
        int(old.header.lengths[found].sum(dtype=np.int64)) for old, found in zip(chosen, moved, strict=True)
    )
    entries = sum(map(len, moved)) + sum(len(old.others) for old in chosen)
    needed_bytes = payload_bytes + sum(old.payload_start for old in chosen)
    written = max(-(-payload_bytes // chunk_bytes), -(-entries // CHUNK_ENTRIES_MAX))
    generation = dataset.generation
    if chosen and not is_dry_run:
        check_room(needed_bytes)
        proceed.expect(written)
        written = 0

        def stored(_entries: int, _bytes: int) -> None:
            nonlocal written
            written += 1
            proceed()

        ids = ids_after((old.chunk_id for old in chosen), now_ns)
        writer = ChunkWriter(store, metadata, ids, dataset, now_ns, admitted, stored, True, chunk_bytes)
        _move(store, dataset.dataset_id, chosen, seed, writer, proceed)
        generation = writer.generation
    return RepackReport(len(chosen), kept, written, files, needed_bytes, generation)


def _strata_by_place(snapshot: Snapshot, strata: bytes | bytearray) -> StrataAt:
    order = StorageOrder(snapshot, files_below(snapshot))
    if len(strata) != 2 * len(order.extents):
        raise InvalidInput(f"strata of {len(strata) // 2} extents, of a snapshot with {len(order.extents)}")
    column = np.frombuffer(strata, "<u2")
    offsets = snapshot.column("extent_offsets")[order.extents].astype(np.int64)
    first = {
        int(snapshot.column("extent_chunks")[order.extents[start]]): (start, end)
        for start, end in zip(order.starts[:-1], order.starts[1:], strict=True)
    }
    bounds = {snapshot.chunk_id(chunk): part for chunk, part in first.items()}

    def found(chunk_id: bytes, asked: Numbers) -> Numbers:
        start, end = bounds.get(chunk_id, (0, 0))
        if start == end:
            return np.full(len(asked), -1)
        places = np.minimum(start + np.searchsorted(offsets[start:end], asked), end - 1)
        return np.where(offsets[places] == asked, column[places].astype(np.int64), -1)

    return found


def _survey(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    strata_at: StrataAt,
    proceed: Proceed,
) -> Iterator[_Old]:
    """The chunks that have files of the snapshot. Raises Damaged for one that cannot be read."""
    records = {
        chunk.chunk_id: chunk
        for chunk in metadata.chunks(dataset.dataset_id)
        if chunk.deleted_entries < chunk.entries
    }
    proceed.expect(len(records))
    with closing(read_in_order(read_header, store, dataset.dataset_id, records)) as headers:
        for chunk_id, found in headers:
            proceed()
            preamble, header = found.result()
            if header.source is None or header.source.is_chunk:
                yield _Old(records[chunk_id], preamble, header, strata_at)


def _move(
    store: ObjectStore,
    dataset_id: bytes,
    chosen: Sequence[_Old],
    seed: int,
    writer: ChunkWriter,
    proceed: Proceed,
) -> None:
    """Copy what moves out of the chosen chunks, entries without bytes first."""
    for old in chosen:
        proceed.check()
        for entry in old.others.tolist():
            copy_entry(writer, old.header, entry, b"")
    rows, entries = _ordered(chosen, seed)
    lengths = [int(chosen[row].header.lengths[entry]) for row, entry in zip(rows, entries, strict=True)]
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // BATCH_BYTES)) + 1
    for batch in zip(np.split(rows, cuts), np.split(entries, cuts), strict=True):
        contents = _read(store, dataset_id, chosen, *batch, proceed)
        for row, entry in zip(*(column.tolist() for column in batch), strict=True):
            copy_entry(writer, chosen[row].header, entry, contents.pop((row, entry)))
    writer.write()


def _ordered(chosen: Sequence[_Old], seed: int) -> tuple[Numbers, Numbers]:
    """The extents that move, in the order in which they are stored, with those of a file one after the other: the index
    in `chosen` and the number of the entry, both of shape (extents,).
    """
    rows = np.repeat(np.arange(len(chosen)), [len(old.files) for old in chosen])
    entries = np.concatenate([old.files for old in chosen])
    order = spread(np.concatenate([old.strata for old in chosen]), seed)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    spanning: dict[tuple[bytes, int], int] = {}
    for file, (row, entry) in enumerate(zip(rows.tolist(), entries.tolist(), strict=True)):
        header = chosen[row].header
        if header.lengths[entry] < header.sizes[entry]:
            spanning[header.paths[entry], int(header.versions[entry])] = int(ranks[file])
    rests = [
        (spanning[key], int(old.header.places[entry]), row, entry)
        for row, old in enumerate(chosen)
        for entry in old.rests.tolist()
        if (key := (old.header.paths[entry], int(old.header.versions[entry]))) in spanning
    ]
    further = np.array(rests, np.int64).reshape(-1, 4)
    ranks, places = np.append(ranks, further[:, 0]), np.append(np.zeros(len(ranks), np.int64), further[:, 1])
    by_place = np.lexsort((places, ranks))
    return np.append(rows, further[:, 2])[by_place], np.append(entries, further[:, 3])[by_place]


def _read(
    store: ObjectStore,
    dataset_id: bytes,
    chosen: Sequence[_Old],
    rows: Numbers,
    entries: Numbers,
    proceed: Proceed,
) -> dict[tuple[int, int], bytes]:
    """The verified content of entries, by row in `chosen` and number. Raises Damaged, NotFound."""
    parts = {row: entries[rows == row] for row in distinct(rows).tolist()}
    by_id = {chosen[row].chunk_id: row for row in parts}
    read = partial(_read_part, chosen=chosen, by_id=by_id, parts=parts)
    contents: dict[tuple[int, int], bytes] = {}
    with closing(read_in_order(read, store, dataset_id, by_id)) as chunks:
        for _, found in chunks:
            proceed.check()
            contents |= found.result()
    return contents


def _read_part(
    store: ObjectStore,
    dataset_id: bytes,
    chunk_id: bytes,
    chosen: Sequence[_Old],
    by_id: Mapping[bytes, int],
    parts: Mapping[int, Numbers],
) -> dict[tuple[int, int], bytes]:
    """The entries of one chunk, with few large reads."""
    row = by_id[chunk_id]
    old, entries = chosen[row], parts[row]
    columns = old.header.offsets[entries], old.header.lengths[entries]
    ranges: Ranges = np.stack(columns, axis=1).astype(np.int64)
    spans = merge_ranges(ranges)
    buffers = [
        store.get_range(dataset_id, chunk_id, old.payload_start + offset, length)
        for offset, length in spans.tolist()
    ]
    contents = {}
    for entry, span, (offset, length) in zip(
        entries.tolist(), span_of(ranges, spans).tolist(), ranges.tolist(), strict=True
    ):
        start = offset - int(spans[span, 0])
        content = bytes(memoryview(buffers[span])[start : start + length])
        if extent_digest_of(content) != old.header.digests[entry].tobytes():
            raise Damaged(
                f"chunk {chunk_name(chunk_id)}: offset {old.payload_start + offset}: digest of "
                f"{printable(old.header.paths[entry])!r} does not match"
            )
        contents[row, entry] = content
    return contents
