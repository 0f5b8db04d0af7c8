"""The snapshot of one entry has what the metadata has: a file of one or several extents, a link, a folder."""

import stat

import pytest

from dieselfs.records import DatasetRecord, Extent, FileRecord, Op
from dieselfs_server.copying.entry_snapshot import entry_snapshot

DATASET = DatasetRecord(bytes(range(16)), "pets", 7, 8, 1, 2, 3)


def extent(place: int, chunk: int, offset: int, length: int) -> Extent:
    return Extent(place, bytes([chunk]) * 16, offset, length, bytes([place % 256]) * 16)


@pytest.mark.parametrize(
    "extents",
    [(), (extent(0, 1, 5, 100),), (extent(0, 9, 7, 60), extent(60, 2, 0, 40))],
    ids=["empty", "one", "several"],
)
def test_a_file_keeps_its_extents(extents: tuple[Extent, ...]) -> None:
    size = sum(each.length for each in extents)
    record = FileRecord(b"a/b/file", Op.FILE, 0o640, 123, size, 50, b"", extents)
    snapshot = entry_snapshot(DATASET, record)
    node = snapshot.require(b"a/b/file")
    assert snapshot.stat(node)[1:] == (stat.S_IFREG | 0o640, size, 123)
    found = snapshot.extents(node)
    assert [(each.place, snapshot.chunk_id(each.chunk), *each[2:]) for each in found] == list(extents)
    assert snapshot.stat(snapshot.require(b"a/b")).is_folder
    assert (snapshot.dataset, snapshot.generation) == ("pets", 7)


def test_links_and_folders() -> None:
    link = entry_snapshot(DATASET, FileRecord(b"link", Op.SYMLINK, 0o777, 5, 0, 50, b"to/here", ()))
    assert link.target(link.require(b"link")) == b"to/here"
    folder = entry_snapshot(DATASET, FileRecord(b"a", Op.DIRECTORY, 0o700, 5, 0, 50, b"", ()))
    assert folder.stat(folder.require(b"a"))[1:] == (stat.S_IFDIR | 0o700, 0, 5)
