"""The nodes below a folder: by number, and as a snapshot of their own. No I/O.

Nodes are numbered breadth first, so each level below a folder is one range of numbers, and all levels together have the
order of a snapshot of the folder.
"""

import stat
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from dieselfs.arrays import Numbers, among, blocks_of
from dieselfs.columns import U8, ends_of, starts_of
from dieselfs.names import CONTROL_FOLDER
from dieselfs.snapshot.format import EXTENT_COLUMNS
from dieselfs.snapshot.hash_index import hash_slots
from dieselfs.snapshot.reader import ROOT, Snapshot
from dieselfs.snapshot.splice import runs_of


def nodes_below(snapshot: Snapshot, folder: int = ROOT) -> list[range]:
    """All nodes below a folder, level by level, ascending; empty for a node that is not a folder."""
    firsts, counts = snapshot.column("firsts"), snapshot.column("counts")
    levels = []
    level = snapshot.children(folder)
    while level:
        levels.append(level)
        run = slice(level.start, level.stop)
        folders = level.start + np.flatnonzero((snapshot.types(run) == stat.S_IFDIR) & (counts[run] > 0))
        if not len(folders):
            break
        last = folders[-1]
        level = range(int(firsts[folders[0]]), int(firsts[last]) + int(counts[last]))
    return levels


def without_control(snapshot: Snapshot, nodes: Numbers) -> Numbers:
    """Those of `nodes` that are not in the folder CONTROL_FOLDER of the root, and not that folder."""
    control = snapshot.find(CONTROL_FOLDER.encode())
    if control < 0:
        return nodes
    below = [np.arange(level.start, level.stop) for level in nodes_below(snapshot, control)]
    return nodes[~among(nodes, np.concatenate([np.array([control]), *below]))]


def listed_children(snapshot: Snapshot, folder: int) -> Sequence[int]:
    """`Snapshot.children`, but in the root without CONTROL_FOLDER."""
    children, control = snapshot.children(folder), snapshot.find(CONTROL_FOLDER.encode())
    return children if folder or control < 0 else [node for node in children if node != control]


def walk_order(snapshot: Snapshot, folder: int = ROOT) -> Numbers:
    """The nodes of `Snapshot.walk`, in its order, without CONTROL_FOLDER: shape (n,). About 50 ms for a million."""
    levels = nodes_below(snapshot, folder)
    all_parents = snapshot.column("parents")
    # Of each level but the first: the place of the parent of each node in the level above.
    parents = [
        all_parents[level.start : level.stop].astype(np.int64) - above.start
        for above, level in pairwise(levels)
    ]
    sizes = [np.ones(len(level), np.int64) for level in levels]  # nodes below each node, and itself
    for number in range(len(levels) - 1, 0, -1):
        np.add.at(sizes[number - 1], parents[number - 1], sizes[number])
    order, places = np.empty(sum(map(len, levels)), np.int64), np.empty(0, np.int64)
    for number, level in enumerate(levels):
        before = starts_of(sizes[number]).astype(np.int64)
        if number:
            above = parents[number - 1]
            firsts = np.flatnonzero(np.diff(above, prepend=-1))
            before += 1 + places[above] - np.repeat(before[firsts], np.diff([*firsts.tolist(), len(above)]))
        places = before
        order[places] = np.arange(level.start, level.stop)
    return order if folder else without_control(snapshot, order)


def files_below(snapshot: Snapshot, folder: int = ROOT) -> Numbers:
    """The files below a folder, ascending, without CONTROL_FOLDER: shape (n,). About 10 ms for a million."""
    return np.concatenate([np.empty(0, np.int64), *file_blocks(snapshot, folder)])


def file_blocks(snapshot: Snapshot, folder: int = ROOT) -> Iterator[Numbers]:
    """As `files_below`, in blocks: all of them may be longer than memory."""
    for level in nodes_below(snapshot, folder):
        for block in blocks_of(len(level)):
            nodes = level[block]
            is_file = snapshot.types(slice(nodes.start, nodes.stop)) == stat.S_IFREG
            found = nodes.start + np.flatnonzero(is_file)
            yield found if folder else without_control(snapshot, found)


def subtree_snapshot(snapshot: Snapshot, path: bytes, selected: Numbers | None = None) -> bytes:
    """The snapshot file of a folder: paths are relative to it, and chunks are those of its files. Not signed.
    `selected`: of the files below, only these and their folders; shape (n,).

    Name, ID, generation and time are those of the dataset. Takes about 1 s per million nodes. Raises PathNotFound, and
    InvalidInput if the path is no folder.
    """
    folder = snapshot.require_folder(path)
    levels = [np.arange(level.start, level.stop) for level in nodes_below(snapshot, folder)]
    nodes = np.concatenate([np.array([folder]), *levels])
    if selected is not None:
        is_kept = np.zeros(len(snapshot), np.bool_)
        is_kept[np.append(selected.astype(np.int64), folder)] = True
        for level in reversed(levels):
            is_kept[snapshot.column("parents")[level[is_kept[level]]]] = True
        nodes = nodes[is_kept[nodes]]
    prefix = len(path) + 1 if path else 0
    paths = [each[prefix:] for each in snapshot.path_many(nodes)]
    parents = np.searchsorted(nodes, snapshot.column("parents")[nodes])
    name_lengths = snapshot.column("name_lengths")[nodes]
    parents[ROOT] = name_lengths[ROOT] = 0

    types, counts = snapshot.types(nodes), snapshot.column("counts")[nodes].astype(np.int64)
    child_counts = np.bincount(parents[1:], minlength=len(nodes))
    counts = np.where(types == stat.S_IFDIR, child_counts, counts)
    extent_counts = counts - child_counts
    extents = runs_of(snapshot.column("firsts")[nodes].astype(np.int64), extent_counts)
    link_nodes = np.flatnonzero(types == stat.S_IFLNK)
    targets = [snapshot.target(node) for node in nodes[link_nodes].tolist()]
    columns = {
        "path_ends": ends_of(paths),
        "name_lengths": name_lengths,
        "parents": parents,
        **{name: snapshot.column(name)[nodes] for name in ("modes", "sizes", "mtimes_ns")},
        "firsts": np.where(types == stat.S_IFDIR, 1 + starts_of(child_counts), starts_of(extent_counts)),
        "counts": counts,
        "paths": np.frombuffer(b"".join(paths), U8),
        **{name: snapshot.column(name)[extents] for name in EXTENT_COLUMNS},
        "link_nodes": link_nodes,
        "link_ends": ends_of(targets),
        "links": np.frombuffer(b"".join(targets), U8),
        **{name: snapshot.column(name) for name in ("chunk_ids", "chunk_digests", "chunk_payload_lengths")},
        "hash_slots": hash_slots(paths, snapshot.header.dataset_id),
    }
    from dieselfs.snapshot.encoding import encode_columns, without_unused_chunks  # where one is written alone

    return encode_columns(snapshot.header, without_unused_chunks(columns))
