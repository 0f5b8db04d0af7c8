"""A page of a folder: entries and folders without entries, in the order of their names."""

from dieselfs.chunk.format import Op
from dieselfs.records import FileRecord
from dieselfs_server.metadata.listing import merge_listing


def record(path: bytes, op: Op = Op.FILE) -> FileRecord:
    return FileRecord(path, op, 0o700, 5, 1, 9, b"", ())


def test_a_folder_stands_in_the_place_of_a_file_but_not_of_its_own_entry() -> None:
    entries = [record(b"d/a"), record(b"d/b", Op.DIRECTORY), record(b"d/c"), record(b"d/\xff")]
    listed = merge_listing(entries, [b"d/b", b"d/c", b"d/d"], limit=10)
    assert [(each.path, each.op, each.version) for each in listed] == [
        (b"d/a", Op.FILE, 9),
        (b"d/b", Op.DIRECTORY, 9),
        (b"d/c", Op.DIRECTORY, 0),
        (b"d/d", Op.DIRECTORY, 0),
        (b"d/\xff", Op.FILE, 9),
    ]
    assert merge_listing(entries, [b"d/b", b"d/c", b"d/d"], limit=2) == listed[:2]
    assert merge_listing([], [], limit=2) == []
