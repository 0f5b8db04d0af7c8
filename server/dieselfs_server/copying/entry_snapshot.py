"""A snapshot of one entry, for copies of single files: that of a whole dataset takes seconds to build. No I/O."""

import numpy as np

from dieselfs.digests import DIGEST_BYTES, EXTENT_DIGESTS, NO_DIGEST
from dieselfs.names import split_path
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable, ExtentColumns, FileRecord, Op
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot


def entry_snapshot(dataset: DatasetRecord, record: FileRecord) -> Snapshot:
    """The entry `record` and the folders above it. The chunks have no digests: check those of the extents."""
    folder, name = split_path(record.path)
    chunk_ids = sorted({extent.chunk_id for extent in record.extents})
    numbers = {chunk_id: number for number, chunk_id in enumerate(chunk_ids)}
    ends = dict.fromkeys(chunk_ids, 0)
    for extent in record.extents:
        ends[extent.chunk_id] = max(ends[extent.chunk_id], extent.offset + extent.length)
    chunk_table = [
        ChunkRecord(chunk_id, 0, 0, ends[chunk_id], bytes(DIGEST_BYTES), 0, 0, b"") for chunk_id in chunk_ids
    ]
    # Also a file of one extent: the form of files that span chunks serves all.
    digests = b"".join(extent.digest for extent in record.extents)
    table = EntryTable(
        dataset=dataset,
        chunk_table=chunk_table,
        folders=[folder],
        names=[name],
        ops=np.array([record.op], np.uint8),
        modes=np.array([record.mode], np.uint32),
        mtimes_ns=np.array([record.mtime_ns], np.int64),
        sizes=np.array([record.size], np.uint64),
        chunks=np.array([-1], np.int64),
        offsets=np.zeros(1, np.uint32),
        digests=np.frombuffer(NO_DIGEST, EXTENT_DIGESTS),
        targets={0: record.target} if record.op == Op.SYMLINK else {},
        extents=ExtentColumns(
            rows=np.zeros(len(record.extents), np.int64),
            places=np.array([extent.place for extent in record.extents], np.uint64),
            chunks=np.array([numbers[extent.chunk_id] for extent in record.extents], np.int64),
            offsets=np.array([extent.offset for extent in record.extents], np.uint32),
            lengths=np.array([extent.length for extent in record.extents], np.uint32),
            digests=np.frombuffer(digests, EXTENT_DIGESTS),
        ),
    )
    return Snapshot(build_snapshot(table), f"{dataset.name}: {record.path!r}")
