"""Small chunks for tests of metadata stores, made by the real builder and read back by the real decoder."""

from collections.abc import Sequence
from dataclasses import dataclass

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import ChunkHeader, Op, Preamble, decode_chunk
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.records import ChunkRecord, EntryTable, Extent, FileRecord
from dieselfs_server.metadata.interface import MetadataStore

DATASET = "pets"
DATASET_ID = bytes(range(16))
NOW_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Put:
    """An entry to pack, without the fields that its operation does not use. `place` and `length` make it an extent."""

    path: bytes
    version: int
    op: Op = Op.FILE
    size: int = 0
    place: int = 0
    length: int | None = None
    mode: int = 0o644
    mtime_ns: int = 5
    target: bytes = b""


def delete(path: bytes, version: int) -> Put:
    return Put(path, version, Op.DELETE)


def chunk_id(number: int, time_s: int = 1_700_000_000) -> bytes:
    return time_s.to_bytes(4, "big") + number.to_bytes(CHUNK_ID_BYTES - 4, "big")


def encode(puts: Sequence[Put], identity: bytes, dataset_id: bytes = DATASET_ID) -> bytes:
    """The object of a chunk with `puts`."""
    builder = ChunkBuilder()
    for put in puts:
        match put.op:
            case Op.FILE:
                length = put.size if put.length is None else put.length
                data = bytes((put.version + put.place + i) % 251 for i in range(length))
                builder.add_file(put.path, data, put.mode, put.mtime_ns, put.size, put.place, put.version)
            case Op.DIRECTORY:
                builder.add_directory(put.path, put.mode, put.mtime_ns, put.version)
            case Op.SYMLINK:
                builder.add_symlink(put.path, put.target, put.mode, put.mtime_ns, put.version)
            case Op.DELETE:
                builder.add_delete(put.path, put.version)
    return b"".join(builder.seal().encode(identity, DATASET, dataset_id, first_version=1))


def pack(
    puts: Sequence[Put], identity: bytes, dataset_id: bytes = DATASET_ID
) -> tuple[Preamble, ChunkHeader]:
    """The preamble and header of a chunk with `puts`, as a store applies them."""
    preamble, header, _ = decode_chunk(encode(puts, identity, dataset_id), "chunk", identity, dataset_id)
    return preamble, header


def apply(store: MetadataStore, puts: Sequence[Put], identity: bytes, dataset_id: bytes = DATASET_ID) -> int:
    return store.apply(dataset_id, *pack(puts, identity, dataset_id), NOW_NS)


def apply_to_copy(store: MetadataStore, copy_id: bytes, puts: Sequence[Put], identity: bytes) -> None:
    """Apply a chunk of the dataset to the copy that a rebuild fills."""
    store.apply(copy_id, *pack(puts, identity), NOW_NS, is_again=True)


def list_all(store: MetadataStore, folder: bytes, limit: int = 1000) -> list[FileRecord]:
    """A folder's content, listed `limit` entries at a time."""
    records: list[FileRecord] = []
    after = b""
    while page := store.list_folder(DATASET_ID, folder, after, limit):
        assert len(page) <= limit
        records += page
        after = page[-1].path.rpartition(b"/")[2]
    return records


def deleted_entries(record: ChunkRecord) -> list[int]:
    """The entries that a chunk's bitmap marks."""
    assert len(record.deleted) == (record.entries + 7) // 8
    marked = [bit for bit in range(len(record.deleted) * 8) if record.deleted[bit // 8] >> bit % 8 & 1]
    assert len(marked) == record.deleted_entries
    return marked


def table_records(table: EntryTable) -> dict[bytes, FileRecord]:
    """The rows of an entry table as records, by path. Their version, which a table does not have, is 0."""
    keys = list(zip(table.folders, table.names, strict=True))
    assert keys == sorted(set(keys)), "rows are not ordered by folder and name"
    ids = [chunk.chunk_id for chunk in table.chunk_table]
    assert ids == sorted(ids)
    spanning = table.extents
    by_row: dict[int, list[Extent]] = {}
    for row, place, chunk, offset, length, digest in zip(
        spanning.rows.tolist(),
        spanning.places.tolist(),
        spanning.chunks.tolist(),
        spanning.offsets.tolist(),
        spanning.lengths.tolist(),
        spanning.digests.tolist(),
        strict=True,
    ):
        by_row.setdefault(row, []).append(Extent(place, ids[chunk], offset, length, digest))
    assert list(by_row) == sorted(by_row)
    records = {}
    for row, (folder, name) in enumerate(keys):
        path = folder + b"/" + name if folder else name
        size, chunk = int(table.sizes[row]), int(table.chunks[row])
        assert (chunk >= 0) == (table.ops[row] == Op.FILE and row not in by_row)
        extents = by_row.get(row, [])
        if chunk >= 0 and size > 0:
            extents = [Extent(0, ids[chunk], int(table.offsets[row]), size, table.digests[row].tobytes())]
        op, mode, mtime_ns = int(table.ops[row]), int(table.modes[row]), int(table.mtimes_ns[row])
        records[path] = FileRecord(
            path, op, mode, mtime_ns, size, 0, table.targets.get(row, b""), tuple(extents)
        )
    return records
