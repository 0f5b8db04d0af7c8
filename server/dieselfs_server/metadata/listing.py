"""One page of a folder, from its entries and its non-empty subfolders. No I/O."""

from collections.abc import Iterable
from heapq import merge

from dieselfs.chunk.format import Op
from dieselfs.records import FileRecord
from dieselfs.snapshot.builder import IMPLICIT_FOLDER_MODE


def implicit_folder(path: bytes) -> FileRecord:
    """The record of a folder without an entry of its own."""
    return FileRecord(path, Op.DIRECTORY, IMPLICIT_FOLDER_MODE, 0, 0, 0, b"", ())


def merge_listing(entries: Iterable[FileRecord], folders: Iterable[bytes], limit: int) -> list[FileRecord]:
    """The first `limit` records by path. Both inputs are ordered; `folders` are paths.

    A folder's own entry precedes its path alone; a folder replaces a file of the same path.
    """
    records: dict[bytes, FileRecord] = {}
    # Of equal keys, `merge` yields the entry first.
    for record in merge(entries, map(implicit_folder, folders), key=lambda record: record.path):
        if record.path not in records or records[record.path].op != Op.DIRECTORY:
            records[record.path] = record
    return list(records.values())[:limit]
