"""Checks that the columns of a snapshot are in range and consistent. No I/O.

A snapshot may be hostile, so one pass over all columns checks them before they are used in place. The nodes are a
tree, numbered as in the format. The extents of each file cover it without gap or overlap, and are inside their chunks.
Names are valid, and the index ends.
"""

import stat
from collections.abc import Mapping
from itertools import repeat
from operator import ge
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.columns import ends_fault, first_bad_path, starts_of
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, PATH_BYTES_MAX
from dieselfs.snapshot.format import SnapshotHeader

Columns = Mapping[str, npt.NDArray[Any]]

_TYPE_MASK = np.uint32(0o170000)
_MODE_MASK = np.uint32(0o177777)
_SLASH = ord("/")


class ColumnFault(Exception):
    """An invalid column: `section` is its name; the reader of the file adds the object and the offset."""

    def __init__(self, section: str, what: str) -> None:
        super().__init__(f"column {section!r}: {what}")
        self.section = section


def check_columns(header: SnapshotHeader, columns: Columns) -> None:
    """Raise ColumnFault unless the columns, of the lengths in the header, make one consistent snapshot."""
    _check_paths(columns)
    _check_tree(columns)
    _check_names(columns)
    _check_chunks(columns)
    _check_extents(header, columns)
    _check_links(columns)
    _check_index(columns)


def _require(is_right: bool | np.bool_, section: str, what: str) -> None:
    if not is_right:
        raise ColumnFault(section, what)


def _types(columns: Columns) -> npt.NDArray[np.uint32]:
    return columns["modes"] & _TYPE_MASK


def _check_paths(columns: Columns) -> None:
    paths, ends = columns["paths"], columns["path_ends"]
    fault = ends_fault(ends, len(paths))
    _require(fault is None, "path_ends", str(fault))
    bad = first_bad_path(paths.data, ends)
    _require(bad is None, "paths", f"node {bad} has an invalid path")
    stops = ends.astype(np.int64)
    starts = np.concatenate(([0], stops[:-1]))
    is_nameless = np.flatnonzero(starts == stops)
    _require(is_nameless.tolist() == [0], "path_ends", "the root, and only the root, has no name")

    # A name is the part of a path after its last slash.
    slashes = np.concatenate(([-1], np.flatnonzero(paths == _SLASH)))
    last_slashes = slashes[np.searchsorted(slashes, stops) - 1]
    names = stops - np.maximum(last_slashes + 1, starts)
    _require((columns["name_lengths"] == names).all(), "name_lengths", "not the lengths of the names")


def _check_tree(columns: Columns) -> None:
    types, parents = _types(columns), columns["parents"]
    is_known = (types == stat.S_IFREG) | (types == stat.S_IFDIR) | (types == stat.S_IFLNK)
    _require(is_known.all() and (columns["modes"] <= _MODE_MASK).all(), "modes", "a node has an unknown type")
    _require(types[0] == stat.S_IFDIR, "modes", "the root is not a folder")
    is_folder = types == stat.S_IFDIR
    folders = np.flatnonzero(is_folder)
    counts = columns["counts"][folders].astype(np.int64)
    _require(counts.sum() == len(types) - 1, "counts", "not every node is in exactly one folder")
    is_right = columns["firsts"][folders] == 1 + starts_of(counts)
    _require(is_right.all(), "firsts", "children are not numbered in order")
    _require(parents[0] == 0, "parents", "the root is in another folder")
    _require((parents[1:] == np.repeat(folders, counts)).all(), "parents", "a node is not in its parent")
    _require((parents[1:] < np.arange(1, len(parents))).all(), "parents", "a folder is in itself")
    _require((columns["sizes"][folders] == 0).all(), "sizes", "a folder has a size")


def _check_names(columns: Columns) -> None:
    """Each path is that of its folder and one name; names ascend inside a folder. Takes about 0.3 us per node."""
    blob = columns["paths"].tobytes()
    ends = columns["path_ends"].tolist()
    folders = np.flatnonzero((_types(columns) == stat.S_IFDIR) & (columns["counts"] > 0))
    firsts, counts = columns["firsts"][folders].tolist(), columns["counts"][folders].tolist()
    for folder, first, count in zip(folders.tolist(), firsts, counts, strict=True):
        prefix = blob[ends[folder - 1] : ends[folder]] + b"/" if folder else b""
        stops = ends[first : first + count]
        starts = [ends[first - 1], *stops[:-1]]
        children = list(map(blob.__getitem__, map(slice, starts, stops)))
        is_inside = all(map(bytes.startswith, children, repeat(prefix)))
        _require(is_inside, "paths", f"a path outside of folder {folder}")
        is_rising = not any(map(ge, children, children[1:]))
        _require(is_rising, "paths", f"the names in folder {folder} do not ascend")
    lengths = np.diff(columns["path_ends"].astype(np.int64), prepend=0)
    in_folder = lengths[columns["parents"]]
    prefixes = np.where(in_folder > 0, in_folder + 1, 0)
    is_right = lengths == prefixes + columns["name_lengths"]
    _require(is_right.all(), "paths", "a path has more parts than folders")


def _check_chunks(columns: Columns) -> None:
    ids = columns["chunk_ids"].view(">u8").reshape(-1, 2)
    high, low = ids[:, 0], ids[:, 1]
    is_rising = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    _require(is_rising.all(), "chunk_ids", "not ascending")
    lengths = columns["chunk_payload_lengths"]
    _require((lengths <= CHUNK_PAYLOAD_BYTES_MAX).all(), "chunk_payload_lengths", "beyond the limit")


def _check_extents(header: SnapshotHeader, columns: Columns) -> None:
    types, chunks = _types(columns), columns["extent_chunks"]
    is_file = types == stat.S_IFREG
    others = np.flatnonzero(types != stat.S_IFDIR)
    counts = columns["counts"][others].astype(np.int64)
    _require((counts[~is_file[others]] == 0).all(), "counts", "a link has extents")
    _require(counts.sum() == len(chunks), "counts", "not every extent belongs to exactly one file")
    is_right = columns["firsts"][others] == starts_of(counts)
    _require(is_right.all(), "firsts", "extents are not numbered in order")
    _require((chunks < header.chunks).all(), "extent_chunks", "there is no such chunk")
    lengths = columns["extent_lengths"].astype(np.int64)
    _require(lengths.all(), "extent_lengths", "an extent is empty")
    is_right = columns["extent_offsets"] + lengths <= columns["chunk_payload_lengths"][chunks]
    _require(is_right.all(), "extent_offsets", "an extent lies outside its chunk")

    # Extents of a file follow one another from its beginning to its end.
    running = np.concatenate(([0], np.cumsum(lengths)))
    file_starts = running[starts_of(counts)]
    file_ends = running[starts_of(counts) + counts]
    places = running[:-1] - np.repeat(file_starts, counts)
    is_right = columns["extent_places"] == places.astype(np.uint64)
    _require(is_right.all(), "extent_places", "a gap or an overlap in a file")
    is_right = columns["sizes"][others] == (file_ends - file_starts).astype(np.uint64)
    _require(is_right[is_file[others]].all(), "sizes", "not the length of the file's extents")
    _require(is_file.sum() == header.files, "modes", f"{is_file.sum()} files, the header says {header.files}")
    total_bytes = int(running[-1])
    what = f"{total_bytes} bytes, the header says {header.total_bytes}"
    _require(total_bytes == header.total_bytes, "sizes", what)


def _check_links(columns: Columns) -> None:
    nodes = np.flatnonzero(_types(columns) == stat.S_IFLNK)
    _require(np.array_equal(columns["link_nodes"], nodes), "link_nodes", "not the nodes of the links")
    fault = ends_fault(columns["link_ends"], len(columns["links"]))
    _require(fault is None, "link_ends", str(fault))
    lengths = np.diff(columns["link_ends"].astype(np.int64), prepend=0)
    is_right = (lengths > 0) & (lengths <= PATH_BYTES_MAX)
    _require(is_right.all(), "link_ends", "a target is empty or too long")
    _require(columns["links"].all(), "links", "a target holds a NUL byte")
    is_right = columns["sizes"][nodes] == lengths.astype(np.uint64)
    _require(is_right.all(), "sizes", "the size of a link is not the length of its target")


def _check_index(columns: Columns) -> None:
    slots, nodes = columns["hash_slots"], len(columns["modes"])
    inodes = np.sort(slots[slots != 0] & np.uint64(0xFFFF_FFFF))
    is_right = np.array_equal(inodes, np.arange(1, nodes + 1))
    _require(is_right, "hash_slots", "not every node is in it exactly once")
    _require(slots[-1] == 0, "hash_slots", "the last slot is not free")
