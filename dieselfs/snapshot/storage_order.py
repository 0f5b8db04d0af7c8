"""The nodes of a tree and the extents of its files, in the order of the storage. No I/O."""

import stat
from collections.abc import Sequence

import numpy as np

from dieselfs.arrays import Numbers, among
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.splice import runs_of
from dieselfs.snapshot.subtree import walk_order


class StorageOrder:
    """Nodes, as node numbers of shape (n,): folders and links in the order in which they were given.

    `extents` are extent numbers of the snapshot, ordered by chunk and offset in it; `owners` are the nodes of their
    files, of the same shape. `starts` are the positions at which a chunk begins, and then the number of extents.
    `entries` is the number of nodes, `total_bytes` that of the bytes of all files.
    """

    def __init__(self, snapshot: Snapshot, nodes: Numbers) -> None:
        """The order of these nodes, none twice: of shape (n,)."""
        kinds = snapshot.types(nodes)
        self.folders, self.links = nodes[kinds == stat.S_IFDIR], nodes[kinds == stat.S_IFLNK]
        files = nodes[kinds == stat.S_IFREG]
        counts = snapshot.column("counts")[files].astype(np.int64)
        self.empty_files = files[counts == 0]
        extents = runs_of(snapshot.column("firsts")[files].astype(np.int64), counts)
        chunks = snapshot.column("extent_chunks")[extents]
        order = np.lexsort((snapshot.column("extent_offsets")[extents], chunks))
        self.extents, self.owners = extents[order], np.repeat(files, counts)[order]
        changes = np.flatnonzero(np.diff(chunks[order].astype(np.int64), prepend=-1))
        self.starts: Sequence[int] = [*changes.tolist(), len(chunks)]
        self.entries, self.total_bytes = len(nodes), int(snapshot.column("sizes")[files].sum())


def tree_order(snapshot: Snapshot, node: int, selected: Numbers | None = None) -> StorageOrder:
    """The order of `node` and everything below it, or of that what is `selected`: ascending, of shape (n,), with the
    folders of each node.
    """
    nodes = np.concatenate([np.array([node]), walk_order(snapshot, node)])
    return StorageOrder(snapshot, nodes if selected is None else nodes[among(nodes, selected)])
