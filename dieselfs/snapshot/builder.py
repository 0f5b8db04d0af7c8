"""Builds a snapshot from the live entries of a generation: arithmetic on columns, no I/O.

Nodes are numbered level by level: the root, its children by name, then the children of each folder among these, and so
on. So the children of a folder are contiguous and sorted, and numbers depend only on the content. Folders without an
entry of their own (a file `a/b` was put, `a` never) exist with mode 0755 and the newest time of their content (0 if
that is older). If a file and a folder of one path exist (by two concurrent writers), the folder hides the file.
"""

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.chunk.format import Op
from dieselfs.columns import ends_of, starts_of
from dieselfs.digests import DIGESTS
from dieselfs.errors import InvalidInput
from dieselfs.names import split_path
from dieselfs.records import EntryTable
from dieselfs.snapshot.format import COUNT_MAX, SnapshotHeader, encode_columns, without_unused_chunks
from dieselfs.snapshot.hash_index import hash_slots

IMPLICIT_FOLDER_MODE = 0o755

_TYPE_BITS = np.zeros(256, np.uint32)
_TYPE_BITS[[Op.FILE, Op.DIRECTORY, Op.SYMLINK]] = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def build_snapshot(table: EntryTable, header: SnapshotHeader | None = None) -> bytes:
    """The snapshot file of a generation. Takes 2 to 4 us per entry. Raises InvalidInput beyond COUNT_MAX entries.

    `header`: of a snapshot with other names of the same entries. What it says about the dataset, and its chunks, stay;
    by default the table says it, and only chunks in which an extent lies are listed.
    """
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
    extent_counts = np.bincount(extents.pop("nodes"), minlength=nodes)
    is_folder = ops == Op.DIRECTORY
    firsts = np.where(is_folder, tree.child_firsts, starts_of(extent_counts))
    counts = np.where(is_folder, tree.child_counts, extent_counts)

    links = sorted((int(node_of_row[row]), table.targets[row]) for row in link_rows)
    link_targets = [target for _, target in links]
    columns = {
        "path_ends": ends_of(tree.paths),
        "name_lengths": tree.name_lengths,
        "parents": tree.parents,
        "modes": modes | _TYPE_BITS[ops],
        "sizes": sizes,
        "mtimes_ns": mtimes_ns,
        "firsts": firsts,
        "counts": counts,
        "paths": np.frombuffer(b"".join(tree.paths), np.uint8),
        **{f"extent_{name}": column for name, column in extents.items()},
        "link_nodes": np.array([node for node, _ in links], np.uint32),
        "link_ends": ends_of(link_targets),
        "links": np.frombuffer(b"".join(link_targets), np.uint8),
        "chunk_ids": np.frombuffer(b"".join(c.chunk_id for c in table.chunk_table), np.uint8),
        "chunk_digests": np.frombuffer(b"".join(c.payload_digest for c in table.chunk_table), DIGESTS),
        "chunk_payload_lengths": np.array([c.payload_length for c in table.chunk_table], np.uint32),
        "hash_slots": hash_slots(tree.paths, table.dataset.dataset_id),
    }
    if header is not None:
        return encode_columns(header, columns)
    return encode_columns(table.dataset, without_unused_chunks(columns))


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
        is_folder = (table.ops == Op.DIRECTORY).tobytes()
        folder_rows: dict[bytes, int] = {
            _join(folders[row], names[row]): row for row in np.flatnonzero(table.ops == Op.DIRECTORY).tolist()
        }
        root_row = folder_rows.pop(b"", -1)
        children = _children(folders, names, first=root_row + 1)  # the root's own row comes before all others
        _add_missing_folders(children, folder_rows)

        rows = [root_row]
        paths = [b""]
        name_lengths = [0]
        implicit_nodes = [0] if root_row < 0 else []
        folders_to_number = [(0, b"")]
        counts = []  # of the children of each of these
        firsts = []
        for _, folder in folders_to_number:  # it grows in the loop
            inside_names, inside_rows = children.get(folder, _EMPTY)
            firsts.append(len(rows))
            counts.append(len(inside_names))
            prefix = folder + b"/" if folder else b""
            inside = list(map(prefix.__add__, inside_names))
            for place in _folder_places(inside_rows, is_folder):
                folders_to_number.append((len(rows) + place, inside[place]))
                if inside_rows[place] < 0:
                    implicit_nodes.append(len(rows) + place)
            rows += inside_rows
            paths += inside
            name_lengths += map(len, inside_names)
        numbered = np.array([node for node, _ in folders_to_number], np.int64)
        child_firsts = np.zeros(len(rows), np.int64)
        child_counts = np.zeros_like(child_firsts)
        child_firsts[numbered], child_counts[numbered] = firsts, counts
        return cls(
            np.array(rows, np.int64),
            paths,
            np.concatenate(([0], np.repeat(numbered, counts))),
            np.array(name_lengths, np.int64),
            child_firsts,
            child_counts,
            implicit_nodes,
        )


_Children = tuple[Sequence[bytes], Sequence[int]]
"""Names and rows of what is in a folder, ordered by name; the row of a folder without an entry is -1."""
_EMPTY: _Children = ((), ())


def _folder_places(rows: Sequence[int], is_folder: bytes) -> list[int]:
    """The places of the folders among the children of one folder."""
    if not isinstance(rows, range):
        return [place for place, row in enumerate(rows) if row < 0 or is_folder[row]]
    places = []
    row = is_folder.find(1, rows.start, rows.stop)
    while row >= 0:
        places.append(row - rows.start)
        row = is_folder.find(1, row + 1, rows.stop)
    return places


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _children(folders: Sequence[bytes], names: Sequence[bytes], first: int) -> dict[bytes, _Children]:
    """The children of each folder, from row `first` on; rows of one folder are contiguous."""
    starts = [row for row in range(first, len(folders)) if row == first or folders[row] != folders[row - 1]]
    runs = zip(starts, [*starts, len(folders)][1:], strict=True)
    return {folders[start]: (names[start:end], range(start, end)) for start, end in runs}


def _add_missing_folders(children: dict[bytes, _Children], folder_rows: dict[bytes, int]) -> None:
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
        inside = zip(*children.get(parent, _EMPTY), strict=True)
        merged = sorted(
            [*(child for child in inside if child[0] not in names), *((name, -1) for name in names)]
        )
        children[parent] = [name for name, _ in merged], [row for _, row in merged]


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
