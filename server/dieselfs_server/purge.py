"""Purge: what is alive in chunks with holes moves to new chunks, and chunks without life are removed. All
functions block.

Two phases, so that readers of older snapshots are not cut off. First, live entries are copied with the
versions that they have; equal versions in a newer chunk count, so the old chunk is dead from then on. A chunk
that has been dead for the grace time is removed by a later purge: first its object, then its record. A crash
anywhere leaves chunks that the next purge takes up again, and a rebuild from the chunks gives the same
dataset at every point.
"""

from collections.abc import Sequence, Set

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import Op, decode_chunk
from dieselfs.chunk.ids import ChunkIdSource, chunk_name
from dieselfs.meta.records import ChunkRecord, DatasetRecord, PinRecord
from dieselfs.rpc.records import PurgeReport
from dieselfs_server.commit import commit_chunk
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.tags import TagShelf


def purge(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    ids: ChunkIdSource,
    tags: TagShelf,
    now_ns: int,
    grace_s: int,
    is_dry_run: bool,
) -> PurgeReport:
    """Purge a dataset; with `is_dry_run` only say what would be done.

    Raises Damaged if a chunk with holes, or a tag, is damaged.
    """
    chunks = metadata.chunks(dataset.dataset_id)
    dead = [chunk for chunk in chunks if chunk.deleted_entries == chunk.entries]
    expired = removable(
        dead,
        metadata.pins(dataset.dataset_id, now_ns),
        tags.needed_chunks(dataset.name, dataset.dataset_id),
        now_ns - grace_s * 10**9,
    )
    holed = [chunk for chunk in chunks if 0 < chunk.deleted_entries < chunk.entries]
    if not is_dry_run:
        for chunk in expired:
            store.delete(dataset.dataset_id, chunk.chunk_id)
            metadata.forget_chunk(dataset.dataset_id, chunk.chunk_id)
        _rewrite(store, metadata, dataset, ids, now_ns, holed)
    return PurgeReport(
        chunks_rewritten=len(holed),
        chunks_removed=len(expired),
        chunks_waiting=len(dead) - len(expired) + len(holed),
        bytes_freed=sum(chunk.header_length + chunk.payload_length for chunk in expired),
    )


def removable(
    dead: Sequence[ChunkRecord], pins: Sequence[PinRecord], tagged: Set[bytes], died_before_ns: int
) -> list[ChunkRecord]:
    """Which dead chunks nobody can need any more: no tag does, and they died before `died_before_ns` and
    before the oldest snapshot came to be that a living reader has.
    """
    oldest_ns = min([died_before_ns, *(pin.updated_ns for pin in pins)])
    return [chunk for chunk in dead if chunk.updated_ns <= oldest_ns and chunk.chunk_id not in tagged]


def _rewrite(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    ids: ChunkIdSource,
    now_ns: int,
    holed: Sequence[ChunkRecord],
) -> None:
    builder = ChunkBuilder()

    def write() -> None:
        chunk_id = ids.next()
        parts = builder.seal().encode(chunk_id, dataset.name, dataset.dataset_id, first_version=1)
        commit_chunk(store, metadata, dataset.dataset_id, chunk_id, b"".join(parts), now_ns)

    for chunk in holed:
        _copy_live(store, dataset, chunk, builder)
        if builder.is_full:
            write()
    if len(builder):
        write()


def _live_entries(chunk: ChunkRecord) -> list[int]:
    return [entry for entry in range(chunk.entries) if not chunk.deleted[entry // 8] >> entry % 8 & 1]


def _copy_live(store: ObjectStore, dataset: DatasetRecord, chunk: ChunkRecord, builder: ChunkBuilder) -> None:
    """Add what is alive in `chunk` to `builder`, with the versions that it has."""
    source = f"chunk {chunk_name(chunk.chunk_id)}"
    data = store.get_range(
        dataset.dataset_id, chunk.chunk_id, 0, store.size(dataset.dataset_id, chunk.chunk_id)
    )
    _, header, payload = decode_chunk(data, source, chunk.chunk_id, dataset.dataset_id)
    for entry in _live_entries(chunk):
        path, version = header.paths[entry], int(header.versions[entry])
        mode, mtime_ns = int(header.modes[entry]), int(header.mtimes_ns[entry])
        match Op(int(header.ops[entry])):
            case Op.FILE:
                start = int(header.offsets[entry])
                data = bytes(payload[start : start + int(header.lengths[entry])])
                size, place = int(header.sizes[entry]), int(header.places[entry])
                builder.add_file(path, data, mode, mtime_ns, size, place, version)
            case Op.DIRECTORY:
                builder.add_directory(path, mode, mtime_ns, version)
            case Op.SYMLINK:
                builder.add_symlink(path, header.target(entry), mode, mtime_ns, version)
            case Op.DELETE:
                builder.add_delete(path, version)
