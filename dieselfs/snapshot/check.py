"""Checks that the columns of a snapshot are in range and consistent. No I/O.

A snapshot may be hostile, so one pass over all columns checks them before they are used in place. The nodes are a
tree, numbered as in the format. The extents of each file cover it without gap or overlap, and are inside their chunks.
Names are valid, and the index ends.

What a delta makes of a checked snapshot is checked only in blocks with a change, by `check_changed`. A hostile server
has no say in the rest, by these reasons:

* All starts, ends and numbers of columns are computed here from counts and lengths, never taken from the delta. The
  delta has only paths, attributes, extents, targets, chunks, and their nodes (`dieselfs.snapshot.splicing`).
* A node that stays keeps its path, and its place among the others that stay. One that the delta does not list also
  keeps its attributes, extents and target. Its folder must stay. Its chunks must stay, with their lengths.
* The children of a folder are those it had, without the removed, with the added ones. Together they must be all nodes
  but the root, so each node is in a folder. Parents ascend where nodes stay together, and are compared with those of
  the neighbours where a block has a change; so the children of a folder follow one another.
* Names ascend among nodes that stay. Each added name is compared with the names before and behind it.
* Only files have extents. A section must have the length that the counts in the header ask for.
* The index may only have entries of the base and of added paths. It has as many as there are nodes, so each is in it
  once. An entry that does not stand where its path leads is refused when it must move.

Loops run over nodes, extents, links, chunks and slots that exist, never over numbers from a delta.
"""

import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from operator import ge
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import first_bad_path, starts_of
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, PATH_BYTES_MAX
from dieselfs.snapshot.format import SnapshotHeader

Columns = Mapping[str, npt.NDArray[Any]]

BLOCK_NODES = 1 << 17

_TYPE_MASK = np.uint32(0o170000)
_MODE_MASK = np.uint32(0o177777)
_SLASH = ord("/")


class ColumnFault(Exception):
    """An invalid column: `section` is its name; the reader of the file adds the object and the offset."""

    def __init__(self, section: str, what: str) -> None:
        super().__init__(f"column {section!r}: {what}")
        self.section = section


class Part(NamedTuple):
    """Consecutive nodes, and how many children, extents and links the nodes before them have."""

    nodes: slice
    children: int
    extents: int
    links: int


def check_columns(header: SnapshotHeader, columns: Columns) -> None:
    """Raise ColumnFault unless the columns, of the lengths in the header, make one consistent snapshot."""
    parts = _all_parts(header, columns)
    files, total_bytes = _check_parts(header, columns, parts)
    _require(files == header.files, "modes", f"{files} files, the header says {header.files}")
    what = f"{total_bytes} bytes, the header says {header.total_bytes}"
    _require(total_bytes == header.total_bytes, "sizes", what)
    _check_links(columns, parts)
    last = parts[-1]
    links = last.links + int((_types(columns, last.nodes) == stat.S_IFLNK).sum())
    _require(links == header.links, "link_nodes", "not the nodes of the links")
    _check_index(columns)


def check_changed(header: SnapshotHeader, columns: Columns, parts: Sequence[Part]) -> None:
    """As `check_columns`, for what a delta made of a snapshot that was checked. `parts`: all nodes that it added or
    changed, the folders that have other children, and the root.
    """
    for part in parts:
        _check_modes(columns, part.nodes)
    _check_parts(header, columns, parts)
    _check_links(columns, parts)


def _check_parts(header: SnapshotHeader, columns: Columns, parts: Sequence[Part]) -> tuple[int, int]:
    """Returns the number of files in these parts, and their bytes."""
    _check_paths(columns, parts)
    _check_tree(columns, parts)
    _check_names(columns, parts)
    _check_chunks(columns)
    return _check_extents(header, columns, parts)


def _all_parts(header: SnapshotHeader, columns: Columns) -> list[Part]:
    """All nodes, a block at a time."""
    parts, children, extents, links = [], 0, 0, 0
    for nodes in _blocks(header.nodes):
        parts.append(Part(nodes, children, extents, links))
        _check_modes(columns, nodes)
        types, counts = _types(columns, nodes), columns["counts"][nodes]
        children += int(counts[types == stat.S_IFDIR].sum(dtype=np.int64))
        extents += int(counts[types != stat.S_IFDIR].sum(dtype=np.int64))
        links += int((types == stat.S_IFLNK).sum())
    _require(children == header.nodes - 1, "counts", "not every node is in exactly one folder")
    _require(extents == header.extents, "counts", "not every extent belongs to exactly one file")
    return parts


def _check_modes(columns: Columns, nodes: slice) -> None:
    types = _types(columns, nodes)
    is_known = (types == stat.S_IFREG) | (types == stat.S_IFDIR) | (types == stat.S_IFLNK)
    is_right = is_known.all() and (columns["modes"][nodes] <= _MODE_MASK).all()
    _require(is_right, "modes", "a node has an unknown type")
    _require(nodes.start > 0 or types[0] == stat.S_IFDIR, "modes", "the root is not a folder")


def _with_neighbours(nodes: slice, count: int) -> slice:
    return slice(max(nodes.start - 1, 0), min(nodes.stop + 1, count))


def _require(is_right: bool | np.bool_, section: str, what: str) -> None:
    if not is_right:
        raise ColumnFault(section, what)


def _blocks(count: int) -> Iterator[slice]:
    """Memory is taken for a block of nodes at a time."""
    return (slice(start, min(start + BLOCK_NODES, count)) for start in range(0, count, BLOCK_NODES))


def _types(columns: Columns, nodes: slice | Numbers) -> npt.NDArray[np.uint32]:
    return columns["modes"][nodes] & _TYPE_MASK


def _path_bounds(columns: Columns, nodes: slice) -> tuple[Numbers, Numbers]:
    """Where the paths of these nodes begin and end; `path_ends` must have been checked."""
    ends = columns["path_ends"]
    stops = ends[nodes].astype(np.int64)
    first = int(ends[nodes.start - 1]) if nodes.start else 0
    return np.concatenate(([first], stops[:-1])), stops


def _check_paths(columns: Columns, parts: Sequence[Part]) -> None:
    paths, ends = columns["paths"], columns["path_ends"]
    for nodes, *_ in parts:
        block, last = ends[nodes], int(ends[nodes.start - 1]) if nodes.start else 0
        is_rising = int(block[0]) >= last and (block[1:] >= block[:-1]).all()
        _require(is_rising, "path_ends", "ends are not ascending")
    what = f"the last end is {int(ends[-1])}, the column has {len(paths)} bytes"
    _require(int(ends[-1]) == len(paths), "path_ends", what)
    for nodes, *_ in parts:
        starts, stops = _path_bounds(columns, nodes)
        blob, first = paths[starts[0] : stops[-1]], int(starts[0])
        bad = first_bad_path(blob.data, stops - first)
        _require(bad is None, "paths", f"node {nodes.start + (bad or 0)} has an invalid path")
        is_nameless = (nodes.start + np.flatnonzero(starts == stops)).tolist()
        _require(is_nameless == [0][nodes.start :], "path_ends", "the root, and only the root, has no name")
        # A name is the part of a path after its last slash.
        slashes = np.concatenate(([-1], first + np.flatnonzero(blob == _SLASH)))
        last_slashes = slashes[np.searchsorted(slashes, stops) - 1]
        names = stops - np.maximum(last_slashes + 1, starts)
        is_right = (columns["name_lengths"][nodes] == names).all()
        _require(is_right, "name_lengths", "not the lengths of the names")


def _check_tree(columns: Columns, parts: Sequence[Part]) -> None:
    parents, firsts, counts = columns["parents"], columns["firsts"], columns["counts"]
    for nodes, children, *_ in parts:
        folders = nodes.start + np.flatnonzero(_types(columns, nodes) == stat.S_IFDIR)
        inside = counts[folders].astype(np.int64)
        is_right = firsts[folders] == 1 + children + starts_of(inside)
        _require(is_right.all(), "firsts", "children are not numbered in order")
        _require((columns["sizes"][folders] == 0).all(), "sizes", "a folder has a size")
    _require(parents[0] == 0, "parents", "the root is in another folder")
    for nodes, *_ in parts:
        checked = _with_neighbours(nodes, len(parents))
        numbers = np.arange(max(checked.start, 1), checked.stop)
        folders = parents[numbers].astype(np.int64)
        _require((folders < numbers).all(), "parents", "a folder is in itself")
        places = numbers - firsts[folders].astype(np.int64)
        is_right = (_types(columns, folders) == stat.S_IFDIR) & (places >= 0) & (places < counts[folders])
        _require(is_right.all(), "parents", "a node is not in its parent")


def _check_names(columns: Columns, parts: Sequence[Part]) -> None:
    """Each path is that of its folder and one name; names ascend inside a folder. Takes about 0.3 us per node."""
    ends, parents, paths = columns["path_ends"], columns["parents"], columns["paths"]
    for part in parts:
        nodes = _with_neighbours(part.nodes, len(ends))
        starts, stops = _path_bounds(columns, nodes)
        first = int(starts[0])
        blob = paths[first : stops[-1]].tobytes()
        every = list(map(blob.__getitem__, map(slice, (starts - first).tolist(), (stops - first).tolist())))
        folders = parents[nodes].astype(np.int64)
        bounds = [0, *(np.flatnonzero(np.diff(folders)) + 1).tolist(), len(folders)]
        if nodes.start == 0:
            bounds[0] = 1  # the root is in no folder
        for start, end in pairwise(bounds):
            if start == end:
                continue
            folder = int(folders[start])
            before = int(ends[folder - 1]) if folder else 0
            prefix = paths[before : int(ends[folder])].tobytes() + b"/" if folder else b""
            children = every[start:end]
            is_inside = all(map(bytes.startswith, children, repeat(prefix)))
            _require(is_inside, "paths", f"a path outside of folder {folder}")
            is_rising = not any(map(ge, children, children[1:]))
            _require(is_rising, "paths", f"the names in folder {folder} do not ascend")
        lengths = stops - starts
        in_folder = ends[folders].astype(np.int64) - np.where(folders > 0, ends[folders - 1], 0).astype(
            np.int64
        )
        prefixes = np.where(in_folder > 0, in_folder + 1, 0)
        is_right = lengths == prefixes + columns["name_lengths"][nodes]
        _require(is_right.all(), "paths", "a path has more parts than folders")


def _check_chunks(columns: Columns) -> None:
    ids = columns["chunk_ids"].view(">u8").reshape(-1, 2)
    high, low = ids[:, 0], ids[:, 1]
    is_rising = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    _require(is_rising.all(), "chunk_ids", "not ascending")
    lengths = columns["chunk_payload_lengths"]
    _require((lengths <= CHUNK_PAYLOAD_BYTES_MAX).all(), "chunk_payload_lengths", "beyond the limit")


def _check_extents(header: SnapshotHeader, columns: Columns, parts: Sequence[Part]) -> tuple[int, int]:
    files = total_bytes = 0
    for nodes, _, extents, _ in parts:
        types = _types(columns, nodes)
        others = nodes.start + np.flatnonzero(types != stat.S_IFDIR)
        is_file = types[others - nodes.start] == stat.S_IFREG
        counts = columns["counts"][others].astype(np.int64)
        _require((counts[~is_file] == 0).all(), "counts", "a link has extents")
        is_right = columns["firsts"][others] == extents + starts_of(counts)
        _require(is_right.all(), "firsts", "extents are not numbered in order")
        end = extents + int(counts.sum())
        sizes = columns["sizes"][others[is_file]]
        total_bytes += _check_content(header, columns, slice(extents, end), counts[is_file], sizes)
        files += int(is_file.sum())
    return files, total_bytes


def _check_content(
    header: SnapshotHeader,
    columns: Columns,
    extents: slice,
    counts: Numbers,
    sizes: npt.NDArray[np.uint64],
) -> int:
    """Check the extents of some files, of which `counts` belong to each; returns their bytes."""
    chunks = columns["extent_chunks"][extents]
    _require((chunks < header.chunks).all(), "extent_chunks", "there is no such chunk")
    lengths = columns["extent_lengths"][extents].astype(np.int64)
    _require(lengths.all(), "extent_lengths", "an extent is empty")
    is_right = columns["extent_offsets"][extents] + lengths <= columns["chunk_payload_lengths"][chunks]
    _require(is_right.all(), "extent_offsets", "an extent lies outside its chunk")
    # Extents of a file follow one another from its beginning to its end.
    running = np.concatenate(([0], np.cumsum(lengths)))
    starts = running[starts_of(counts)]
    places = running[:-1] - np.repeat(starts, counts)
    is_right = columns["extent_places"][extents] == places.astype(np.uint64)
    _require(is_right.all(), "extent_places", "a gap or an overlap in a file")
    is_right = sizes == (running[starts_of(counts) + counts] - starts).astype(np.uint64)
    _require(is_right.all(), "sizes", "not the length of the file's extents")
    return int(running[-1])


def _check_links(columns: Columns, parts: Sequence[Part]) -> None:
    ends = columns["link_ends"]
    end = int(ends[-1]) if len(ends) else 0
    _require(end == len(columns["links"]), "link_ends", f"the last end is {end}, not that of the targets")
    for nodes, _, _, links in parts:
        found = nodes.start + np.flatnonzero(_types(columns, nodes) == stat.S_IFLNK)
        some = slice(links, links + len(found))
        are_same = np.array_equal(columns["link_nodes"][some], found)
        _require(are_same, "link_nodes", "not the nodes of the links")
        first = int(ends[links - 1]) if links else 0
        lengths = np.diff(ends[some].astype(np.int64, casting="unsafe"), prepend=first)
        is_right = (lengths > 0) & (lengths <= PATH_BYTES_MAX)
        _require(is_right.all(), "link_ends", "a target is empty or too long")
        is_right = columns["sizes"][found] == lengths.astype(np.uint64)
        _require(is_right.all(), "sizes", "the size of a link is not the length of its target")
        targets = columns["links"][first : first + int(lengths.sum())]
        _require(targets.all(), "links", "a target holds a NUL byte")


def _check_index(columns: Columns) -> None:
    slots, is_found = columns["hash_slots"], np.zeros(len(columns["modes"]) + 1, np.bool_)
    taken = 0
    for start in range(0, len(slots), BLOCK_NODES):
        inodes = slots[start : start + BLOCK_NODES] & np.uint64(0xFFFF_FFFF)
        inodes = inodes[slots[start : start + BLOCK_NODES] != 0].astype(np.int64)
        _require((inodes < len(is_found)).all(), "hash_slots", "there is no such node")
        is_found[inodes] = True
        taken += len(inodes)
    is_each_once = bool(is_found[1:].all()) and not is_found[0] and taken == len(is_found) - 1
    _require(is_each_once, "hash_slots", "not every node is in it exactly once")
    _require(slots[-1] == 0, "hash_slots", "the last slot is not free")
