"""Builds a snapshot from the live entries of a generation: arithmetic on columns, no I/O.

Nodes are numbered level by level: the root, its children by name, then the children of each folder among these, and so
on. So the children of a folder are contiguous and sorted, and numbers depend only on the content. Folders without an
entry of their own (a file `a/b` was put, `a` never) exist with mode 0755 and the newest time of their content (0 if
that is older). If a file and a folder of one path exist (by two concurrent writers), the folder hides the file.
"""

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.arrays import Numbers
from dieselfs.chunk.format import Op
from dieselfs.columns import ends_of
from dieselfs.digests import DIGESTS
from dieselfs.errors import InvalidInput
from dieselfs.names import split_path
from dieselfs.records import EntryTable
from dieselfs.snapshot.format import COUNT_MAX, encode_snapshot

IMPLICIT_FOLDER_MODE = 0o755

_TYPE_BITS = np.zeros(256, np.uint32)
_TYPE_BITS[[Op.FILE, Op.DIRECTORY, Op.SYMLINK]] = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def hash_seed(dataset_id: bytes) -> int:
    """Seed of the path hash: differs between datasets, so no crafted paths collide in all."""
    return int.from_bytes(dataset_id[:8], "little")


def hash_bits_for(nodes: int) -> int:
    """Bits of the hash that choose a slot: between a third and two thirds of the slots are used."""
    return (nodes + nodes // 2).bit_length()


def build_snapshot(table: EntryTable) -> bytes:
    """The snapshot file of a generation. Takes 2 to 4 us per entry. Raises InvalidInput beyond COUNT_MAX entries."""
    tree = _Tree.of(table)
    if max(len(tree.rows), len(table.extents.rows) + len(table.ops)) > COUNT_MAX:
        raise InvalidInput(f"a snapshot holds at most {COUNT_MAX} entries")
    nodes = len(tree.rows)
    node_of_row = np.full(len(table.ops), -1, np.int64)
    is_row = tree.rows >= 0
    node_of_row[tree.rows[is_row]] = np.flatnonzero(is_row)
    # One more row than the table: the default for implicit folders (row -1).
    ops = np.append(table.ops, np.uint8(Op.DIRECTORY))[tree.rows]
    modes = np.append(table.modes, np.uint32(IMPLICIT_FOLDER_MODE))[tree.rows]
    sizes = np.append(table.sizes, np.uint64(0))[tree.rows]
    link_rows = [row for row in table.targets if node_of_row[row] >= 0]
    sizes[node_of_row[link_rows]] = [len(table.targets[row]) for row in link_rows]
    mtimes_ns = _folder_times(np.append(table.mtimes_ns, np.int64(0))[tree.rows], tree)

    extents = _extents(table, node_of_row)
    extent_counts = np.bincount(extents["nodes"], minlength=nodes)
    is_folder = ops == Op.DIRECTORY
    firsts = np.where(is_folder, tree.child_firsts, np.cumsum(extent_counts) - extent_counts)
    counts = np.where(is_folder, tree.child_counts, extent_counts)

    links = sorted((int(node_of_row[row]), table.targets[row]) for row in link_rows)
    link_targets = [target for _, target in links]
    is_file = ops == Op.FILE
    return encode_snapshot(
        table.dataset.name,
        table.dataset.dataset_id,
        {
            "generation": table.dataset.generation,
            "updated_ns": table.dataset.updated_ns,
            "nodes": nodes,
            "files": int(is_file.sum()),
            "total_bytes": int(sizes[is_file].sum()),
            "extents": len(extents["nodes"]),
            "links": len(links),
            "chunks": len(table.chunk_table),
            "hash_bits": hash_bits_for(nodes),
        },
        {
            "path_ends": ends_of(tree.paths),
            "name_lengths": tree.name_lengths,
            "parents": tree.parents,
            "modes": modes | _TYPE_BITS[ops],
            "sizes": sizes,
            "mtimes_ns": mtimes_ns,
            "firsts": firsts,
            "counts": counts,
            "paths": np.frombuffer(b"".join(tree.paths), np.uint8),
            "extent_chunks": extents["chunks"],
            "extent_offsets": extents["offsets"],
            "extent_lengths": extents["lengths"],
            "extent_places": extents["places"],
            "extent_digests": extents["digests"],
            "link_nodes": np.array([node for node, _ in links], np.uint32),
            "link_ends": ends_of(link_targets),
            "links": np.frombuffer(b"".join(link_targets), np.uint8),
            "chunk_ids": np.frombuffer(b"".join(c.chunk_id for c in table.chunk_table), np.uint8),
            "chunk_digests": np.frombuffer(b"".join(c.payload_digest for c in table.chunk_table), DIGESTS),
            "chunk_payload_lengths": np.array([c.payload_length for c in table.chunk_table], np.uint32),
            "hash_slots": _hash_slots(tree.paths, table.dataset.dataset_id),
        },
    )


@dataclass(frozen=True, eq=False)
class _Tree:
    """The numbering of nodes. Element `i` belongs to node `i`; `rows` is its row in the table, -1 for none."""

    rows: Numbers
    paths: list[bytes]
    parents: Numbers
    name_lengths: Numbers
    child_firsts: Numbers
    child_counts: Numbers
    implicit: list[int]
    """Nodes of folders without an entry, ascending."""

    @classmethod
    def of(cls, table: EntryTable) -> "_Tree":
        folders, names = table.folders, table.names
        folder_rows: dict[bytes, int] = {
            _join(folders[row], names[row]): row for row in np.flatnonzero(table.ops == Op.DIRECTORY).tolist()
        }
        root_row = folder_rows.pop(b"", -1)
        children = _children(folders, names, first=root_row + 1)  # the root's own row comes before all others
        _add_missing_folders(children, folder_rows)

        rows = [root_row]
        paths = [b""]
        name_lengths = [0]
        parents = [0]
        child_firsts = np.zeros(sum(map(len, children.values())) + 1, np.int64)
        child_counts = np.zeros_like(child_firsts)
        implicit_nodes = [0] if root_row < 0 else []
        folders_to_number = [(0, b"")]
        for node, folder in folders_to_number:  # it grows in the loop
            inside = children.get(folder, [])
            child_firsts[node], child_counts[node] = len(rows), len(inside)
            prefix = folder + b"/" if folder else b""
            for name, row in inside:
                path = prefix + name
                if row < 0 or path in folder_rows:
                    folders_to_number.append((len(rows), path))
                    if row < 0:
                        implicit_nodes.append(len(rows))
                rows.append(row)
                paths.append(path)
                name_lengths.append(len(name))
            parents += [node] * len(inside)
        return cls(
            np.array(rows, np.int64),
            paths,
            np.array(parents, np.int64),
            np.array(name_lengths, np.int64),
            child_firsts,
            child_counts,
            implicit_nodes,
        )


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _children(
    folders: Sequence[bytes], names: Sequence[bytes], first: int
) -> dict[bytes, list[tuple[bytes, int]]]:
    """`(name, row)` of the children of each folder, from row `first` on; rows of one folder are contiguous."""
    starts = [row for row in range(first, len(folders)) if row == first or folders[row] != folders[row - 1]]
    runs = zip(starts, [*starts, len(folders)][1:], strict=True)
    return {
        folders[start]: list(zip(names[start:end], range(start, end), strict=True)) for start, end in runs
    }


def _add_missing_folders(
    children: dict[bytes, list[tuple[bytes, int]]], folder_rows: dict[bytes, int]
) -> None:
    """Add every non-empty folder without a row to its parent, with row -1."""
    missing: dict[bytes, set[bytes]] = {}
    for folder in list(children):
        while folder and folder not in folder_rows:
            parent, name = split_path(folder)
            names = missing.setdefault(parent, set())
            if name in names:
                break
            names.add(name)
            folder = parent
    for parent, names in missing.items():
        # Hides files of these names.
        inside = [child for child in children.get(parent, []) if child[0] not in names]
        children[parent] = sorted([*inside, *((name, -1) for name in names)])


def _folder_times(mtimes_ns: npt.NDArray[np.int64], tree: _Tree) -> npt.NDArray[np.int64]:
    """Set the newest time below on implicit folders; children have larger numbers than their folder."""
    for node in reversed(tree.implicit):
        first, count = int(tree.child_firsts[node]), int(tree.child_counts[node])
        mtimes_ns[node] = mtimes_ns[first : first + count].max(initial=0)
    return mtimes_ns


def _extents(table: EntryTable, node_of_row: Numbers) -> dict[str, npt.NDArray[Any]]:
    """The extents of all visible files, ordered by (node, place)."""
    single = np.flatnonzero((table.chunks >= 0) & (table.sizes > 0))
    spanning = table.extents
    columns: dict[str, npt.NDArray[Any]] = {
        "nodes": node_of_row[np.concatenate((single, spanning.rows))],
        "chunks": np.concatenate((table.chunks[single], spanning.chunks)),
        "offsets": np.concatenate((table.offsets[single], spanning.offsets)),
        "lengths": np.concatenate((table.sizes[single], spanning.lengths.astype(np.uint64))),
        "places": np.concatenate((np.zeros(len(single), np.uint64), spanning.places)),
        "digests": np.concatenate((table.digests[single], spanning.digests)),
    }
    order = np.lexsort((columns["places"], columns["nodes"]))
    order = order[columns["nodes"][order] >= 0]
    return {name: column[order] for name, column in columns.items()}


def _hash_slots(paths: list[bytes], dataset_id: bytes) -> npt.NDArray[np.uint64]:
    """The hash index: each path in the first slot that is free from its hash's upper bits on, in order of the hashes.

    A slot holds the hash's lower 32 bits above the inode; 0 if free. The table ends with a free slot.
    """
    seed = hash_seed(dataset_id)
    hashes = np.fromiter(map(xxh3_64_intdigest, paths, repeat(seed)), np.uint64, len(paths))
    bits = hash_bits_for(len(paths))
    nodes = np.argsort(hashes, kind="stable")
    hashes = hashes[nodes]
    order = np.arange(len(paths))
    slots = np.maximum.accumulate((hashes >> np.uint64(64 - bits)).astype(np.int64) - order) + order
    table = np.zeros(max(int(slots[-1]) + 1, 1 << bits) + 1, np.uint64)
    table[slots] = hashes << np.uint64(32) | (nodes + 1).astype(np.uint64)
    return table
