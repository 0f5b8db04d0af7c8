"""A page of a folder, from its entries and from the folders in it that have something in them. No I/O."""

from collections.abc import Iterable
from heapq import merge

from dieselfs.chunk.format import Op
from dieselfs.meta.records import FileRecord
from dieselfs.meta.snapshot_builder import IMPLICIT_FOLDER_MODE


def merge_listing(entries: Iterable[FileRecord], folders: Iterable[bytes], limit: int) -> list[FileRecord]:
    """The first `limit` of both, ordered by path. `folders` are paths; both come ordered, each with the first `limit`.

    A folder's own entry tells more than its path. Where a file and a folder have one path, the folder stands.
    """
    implicit = (
        FileRecord(
            path, Op.DIRECTORY, IMPLICIT_FOLDER_MODE, mtime_ns=0, size=0, version=0, target=b"", extents=()
        )
        for path in folders
    )
    records: dict[bytes, FileRecord] = {}
    for record in merge(
        entries, implicit, key=lambda record: record.path
    ):  # of equals, the entry comes first
        if record.path not in records or records[record.path].op != Op.DIRECTORY:
            records[record.path] = record
    return list(records.values())[:limit]
