"""A snapshot of four entries, for the parsers that need one. No I/O."""

from functools import cache

import numpy as np

from dieselfs.digests import DIGEST_BYTES, EXTENT_DIGESTS
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable, ExtentColumns, Op
from dieselfs.snapshot.builder import build_snapshot

DATASET_ID = bytes(range(16))


@cache
def small_snapshot() -> bytes:
    """A folder, a file in one chunk, one in two, a link."""
    table = EntryTable(
        DatasetRecord(DATASET_ID, "pets", 7, 8, 2, 15, 2),
        [
            ChunkRecord(bytes([number]) * 16, 1, 100, 10, bytes(DIGEST_BYTES), 2, 0, b"\0")
            for number in (1, 2)
        ],
        [b"", b"", b"train", b"train"],
        [b"latest", b"train", b"cat.txt", b"video"],
        np.array([Op.SYMLINK, Op.DIRECTORY, Op.FILE, Op.FILE], np.uint8),
        np.array([0o777, 0o755, 0o644, 0o644], np.uint32),
        np.array([1, 2, 3, 4], np.int64),
        np.array([0, 0, 5, 10], np.uint64),
        np.array([-1, -1, 0, -1], np.int64),
        np.zeros(4, np.uint32),
        np.zeros(4, EXTENT_DIGESTS),
        {0: b"train/cat.txt"},
        ExtentColumns(
            np.array([3, 3], np.int64),
            np.array([0, 5], np.uint64),
            np.array([0, 1], np.int64),
            np.array([5, 0], np.uint32),
            np.array([5, 5], np.uint32),
            np.zeros(2, EXTENT_DIGESTS),
        ),
    )
    return build_snapshot(table)
