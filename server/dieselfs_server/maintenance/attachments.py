"""The attached sources of a dataset: their list and their removal. All functions block.

A source is found through the headers of the chunks that are attached to it. To remove it is to delete the entries that
count in these chunks.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from dieselfs.chunk.format import PREAMBLE_BYTES, ChunkHeader, Op, decode_preamble
from dieselfs.chunk.ids import ChunkIdSource, chunk_name
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import DieselfsError, NotFound
from dieselfs.limits import ATTACHED_PER_REPLY_MAX
from dieselfs.names import printable
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.records import AttachedRecord, DetachReport
from dieselfs_server.datasets.commit import ChunkWriter, read_header
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.maintenance.rebuild import report_line
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order


@dataclass(frozen=True, slots=True)
class AttachedChunk:
    """A chunk with its record, at least one of whose entries counts."""

    record: ChunkRecord
    header: ChunkHeader
    source: AttachedSource

    def live(self) -> list[int]:
        """The numbers of the entries that count."""
        deleted = self.record.deleted
        return [entry for entry in range(self.record.entries) if not deleted[entry // 8] >> entry % 8 & 1]


def attached_chunks(
    store: ObjectStore, metadata: MetadataStore, dataset_id: bytes, proceed: Proceed | None = None
) -> Iterator[AttachedChunk]:
    """The attached chunks that count, also those that refer to other chunks. Raises Damaged for one that cannot be
    read.
    """
    records = {
        chunk.chunk_id: chunk
        for chunk in metadata.chunks(dataset_id)
        if chunk.deleted_entries < chunk.entries
    }
    proceed = proceed or Proceed()
    proceed.expect(len(records))
    with closing(read_in_order(_attached_header, store, dataset_id, records)) as chunks:
        for chunk_id, found in chunks:
            proceed()
            header = found.result()
            if header is not None and header.source is not None:
                yield AttachedChunk(records[chunk_id], header, header.source)


def source_of(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> AttachedSource | None:
    """None of a chunk that is not attached. Raises NotFound, Damaged."""
    header = _attached_header(store, dataset_id, chunk_id)
    return None if header is None else header.source


def _attached_header(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> ChunkHeader | None:
    """None of a chunk that is not attached."""
    preamble = store.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES)
    is_one = decode_preamble(preamble, f"chunk {chunk_name(chunk_id)}", chunk_id).is_attached
    return read_header(store, dataset_id, chunk_id)[1] if is_one else None


def list_attached(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset_id: bytes,
    after: bytes,
    check: Callable[[AttachedSource], None],
    proceed: Proceed | None = None,
) -> list[AttachedRecord]:
    """The sources of a dataset whose locations sort behind `after`: those of ATTACHED_PER_REPLY_MAX locations, ordered.

    `check` raises a DieselfsError for one that is not there as it was.
    """
    found: dict[tuple[bytes, int, str], list[int]] = {}
    for chunk in attached_chunks(store, metadata, dataset_id, proceed):
        source, live = chunk.source, chunk.live()
        if source.location <= after or source.is_chunk:
            continue
        totals = found.setdefault((source.location, source.size_bytes, source.mark), [0, 0, 0])
        files = [entry for entry in live if chunk.header.ops[entry] == Op.FILE]
        totals[0] += 1
        totals[1] += sum(int(chunk.header.places[entry]) == 0 for entry in files)
        totals[2] += sum(int(chunk.header.lengths[entry]) for entry in files)
    listed: list[AttachedRecord] = []
    for (location, size_bytes, mark), counts in sorted(found.items()):
        if len(listed) >= ATTACHED_PER_REPLY_MAX and location != listed[-1].location:
            break
        trouble = ""
        try:
            check(AttachedSource(location, size_bytes, mark))
        except DieselfsError as error:
            trouble = report_line(str(error)).removeprefix(f"{printable(location)}: ")
        listed.append(AttachedRecord(location, size_bytes, mark, counts[0], counts[1], counts[2], trouble))
    return listed


def detach(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    location: bytes,
    now_ns: int,
    ids: ChunkIdSource,
    proceed: Proceed | None = None,
) -> DetachReport:
    """Delete the entries that count and come from a source at, or below, `location`. May be repeated.

    Raises NotFound if there is no such source.
    """
    sources: set[bytes] = set()
    paths: dict[bytes, None] = {}
    for chunk in attached_chunks(store, metadata, dataset.dataset_id, proceed):
        found = chunk.source.location
        if chunk.source.is_chunk:
            continue
        if found == location or found.startswith(location.rstrip(b"/") + b"/"):
            sources.add(found)
            paths |= dict.fromkeys(chunk.header.paths[entry] for entry in chunk.live())
    if not sources:
        raise NotFound(
            f"{printable(location)}: nothing of {dataset.name} is attached to it; "
            f"dlcmd attach --list dl://{dataset.name} lists the sources"
        )
    writer = ChunkWriter(store, metadata, ids, dataset, lambda: now_ns)
    for path in paths:
        writer.make_room(0)
        writer.builder.add_delete(path)
    writer.write()
    return DetachReport(len(paths), len(sources), writer.generation)
