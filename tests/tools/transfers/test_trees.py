"""The content of a stored folder, by relative path."""

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.records import Op
from dieselfs.snapshot.reader import Snapshot
from dieselfs_tools.transfers.trees import StoredTree
from tests.support.snapshots import SOURCE, Entry, snapshot_bytes

TREE = {b"a/b/f": Entry(Op.FILE, 0o644, 1), b"a/c": Entry(Op.SYMLINK, 0o777, 1, target=b"b")}


def test_paths_are_relative_to_the_folder() -> None:
    snapshot = Snapshot(snapshot_bytes(TREE), SOURCE)
    assert set(StoredTree(snapshot, b"").entries) == {b"a", b"a/b", b"a/b/f", b"a/c"}
    below = StoredTree(snapshot, b"a")
    assert set(below.entries) == set(below.nodes) == {b"b", b"b/f", b"c"}
    assert below.entries[b"c"].path == b"c" and below.entries[b"c"].target == b"b"
    assert snapshot.path(below.nodes[b"b/f"]) == b"a/b/f"


def test_only_a_folder_that_exists() -> None:
    snapshot = Snapshot(snapshot_bytes(TREE), SOURCE)
    with pytest.raises(InvalidInput, match="is not a folder"):
        StoredTree(snapshot, b"a/c")
    with pytest.raises(NotFound):
        StoredTree(snapshot, b"b")
