"""The order of the storage: each chunk once, extents ascending, and only the chosen nodes."""

import numpy as np

from dieselfs.snapshot.storage_order import StorageOrder, tree_order
from tests.support.dataset import TreeEntry, pack_entries

ENTRIES = [
    TreeEntry(b"a", 0o040755, 0, b""),
    TreeEntry(b"a/empty", 0o100644, 0, b""),
    TreeEntry(b"a/large", 0o100644, 0, bytes(2500)),
    *(TreeEntry(b"b/%02d" % number, 0o100644, 0, bytes(100 + number)) for number in range(40)),
    TreeEntry(b"link", 0o120777, 0, b"a/large"),
]


def test_a_tree_order_is_in_the_order_of_the_storage() -> None:
    snapshot = pack_entries(ENTRIES, chunk_bytes=1000).snapshot
    order = tree_order(snapshot, 0)
    chunks, offsets = (
        snapshot.column(f"extent_{name}")[order.extents].tolist() for name in ("chunks", "offsets")
    )
    places = list(zip(chunks, offsets, strict=True))
    assert places == sorted(places) and len(set(places)) == len(snapshot.column("extent_chunks"))
    assert [chunks[start] for start in order.starts[:-1]] == sorted(set(chunks))
    assert order.starts[-1] == len(places)
    assert order.total_bytes == sum(
        len(entry.content) for entry in ENTRIES if entry.mode & 0o100000 and entry.path != b"link"
    )
    assert [snapshot.path(node) for node in order.folders.tolist()] == [b"", b"a", b"b"]
    assert [snapshot.path(node) for node in order.links.tolist()] == [b"link"]
    assert [snapshot.path(node) for node in order.empty_files.tolist()] == [b"a/empty"]
    assert order.entries == len(snapshot)


def test_only_selected_nodes_are_in_it() -> None:
    snapshot = pack_entries(ENTRIES, chunk_bytes=1000).snapshot
    selected = np.array(sorted(map(snapshot.require, (b"", b"a", b"a/large", b"b", b"b/07"))))
    order = tree_order(snapshot, 0, selected)
    assert {snapshot.path(node) for node in order.owners.tolist()} == {b"a/large", b"b/07"}
    assert (order.entries, order.total_bytes) == (5, 2607)
    assert tree_order(snapshot, snapshot.require(b"a"), selected).entries == 2
    nothing = StorageOrder(snapshot, np.array([], np.int64))
    assert (nothing.entries, nothing.total_bytes, list(nothing.starts)) == (0, 0, [0])
