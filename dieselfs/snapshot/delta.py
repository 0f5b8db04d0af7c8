"""The difference of two snapshots of a dataset, and its application. Arithmetic on columns, no I/O.

A snapshot is a function of its entries, so a few changed entries are enough to make the next generation from the last
one, to the byte. The digest and the signature of the result are those of the server's snapshot; a reader that applies a
delta checks both.

Nodes that are in both generations have the same order in both: it depends on their paths alone.
"""

import stat
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Hashes, Numbers, among, distinct
from dieselfs.errors import Damaged
from dieselfs.snapshot.check import Part
from dieselfs.snapshot.delta_format import Delta
from dieselfs.snapshot.format import EXTENT_COLUMNS
from dieselfs.snapshot.hash_index import path_hashes
from dieselfs.snapshot.reader import ROOT, Snapshot
from dieselfs.snapshot.splice import Splice, runs_of
from dieselfs.snapshot.splicing import Columns, Spliced

_BLOCK_BYTES = 1 << 20
_BLOCK_NODES = 1 << 16
_ATTRIBUTES = ("modes", "sizes", "mtimes_ns")
_NONE = np.empty(0, np.int64)


# -- application -----------------------------------------------------------------------------------------


def apply_delta(base: Snapshot, delta: Delta, source: str, file: BinaryIO) -> list[Part]:
    """Write the snapshot file that `delta` makes of `base` into `file`, which is empty, seekable and readable. Returns
    the parts that are not copies. Raises Damaged if they do not fit, OSError of the file.

    The result is not verified: check its digest and signature as those of one from a server, and these parts.
    """
    if delta.base_digest != base.digest:
        raise Damaged(f"{source}: it is for another snapshot")
    try:
        header = replace(base.header, generation=delta.generation, updated_ns=delta.updated_ns)
        spliced = Spliced(base, delta.columns)
        spliced.write(file, header, lambda _: (delta.signer, delta.signature), True)
        return spliced.parts
    except (IndexError, ValueError, OverflowError) as error:
        raise Damaged(f"{source}: its columns do not fit the snapshot: {error}") from None


def extent_counts_of(snapshot: Snapshot) -> Numbers:
    """The number of extents of each node: shape (nodes,)."""
    return np.where(snapshot.types() == stat.S_IFDIR, 0, snapshot.column("counts")).astype(np.int64)


# -- difference ------------------------------------------------------------------------------------------


def delta_between(base: Snapshot, new: Snapshot) -> Delta | None:
    """What turns `base` into `new`; None if there is no delta (they are of different datasets).

    Takes about 0.2 s per million nodes, and 1 s more per million between the first and the last change.
    """
    if base.header.dataset_id != new.header.dataset_id or base.dataset != new.dataset:
        return None
    old_of_new = _matched(base, new)
    matched = np.flatnonzero(old_of_new >= 0)
    if not len(matched) or matched[0] != ROOT or not (np.diff(old_of_new[matched]) > 0).all():
        return None
    is_changed = _changed(base, new, matched, old_of_new[matched], _matched_chunks(base, new))
    is_listed = old_of_new < 0
    is_listed[matched[is_changed]] = True
    is_kept_old = np.zeros(len(base), np.bool_)
    is_kept_old[old_of_new[matched]] = True
    added = np.flatnonzero(old_of_new < 0)
    return _delta(base, new, np.flatnonzero(~is_kept_old), np.flatnonzero(is_listed), added)


def delta_along(base: Snapshot, steps: Sequence[Columns], new: Snapshot) -> Delta:
    """What turns `base` into `new`, in the time of the changes. `steps`: the columns of deltas from each generation to
    the next, of which `removed`, `nodes` and `path_lengths` are used. Raises Damaged if they do not fit.
    """
    nodes, listed = Splice(len(base), _NONE, _NONE), _NONE
    try:
        for step in steps:
            splice = Splice(nodes.count, step["removed"], step["nodes"][step["path_lengths"] > 0])
            gone, added = nodes.old_of_new(splice.removed), splice.new_of_old(nodes.added)
            removed = np.sort(np.concatenate((nodes.removed, gone[gone >= 0])))
            nodes = Splice(len(base), removed, np.sort(np.concatenate((added[added >= 0], splice.added))))
            kept = splice.new_of_old(listed)
            listed = distinct(np.concatenate((kept[kept >= 0], step["nodes"].astype(np.int64))))
        if nodes.count != len(new):
            raise IndexError(f"they lead to {nodes.count} entries, not {len(new)}")
        return _delta(base, new, nodes.removed, listed, nodes.added)
    except IndexError as error:
        raise Damaged(f"{new.source}: the deltas to it do not fit: {error}") from None


def _delta(base: Snapshot, new: Snapshot, removed: Numbers, nodes: Numbers, added: Numbers) -> Delta:
    """`removed`: nodes of `base`; `nodes`: those of `new` that were added or changed, and `added` of these."""
    chunks = _matched_chunks(base, new)
    ends = new.column("path_ends")[nodes].astype(np.int64)
    starts = np.where(nodes > 0, new.column("path_ends")[nodes - 1], 0).astype(np.int64)
    path_lengths = np.where(among(nodes, added), ends - starts, 0)
    types = new.types(nodes)
    extent_counts = np.where(types == stat.S_IFDIR, 0, new.column("counts")[nodes]).astype(np.int64)
    extents = runs_of(new.column("firsts")[nodes].astype(np.int64), extent_counts)
    new_chunks = np.flatnonzero(chunks < 0)
    is_kept_chunk = np.zeros(base.chunk_count, np.bool_)
    is_kept_chunk[chunks[chunks >= 0]] = True
    links = nodes[types == stat.S_IFLNK]
    link_ends = new.column("link_ends")[np.searchsorted(new.column("link_nodes"), links)].astype(np.int64)
    link_lengths = new.column("sizes")[links].astype(np.int64)
    header = new.header
    return Delta(
        base.digest,
        new.digest,
        header.signer,
        header.signature,
        header.generation,
        header.updated_ns,
        {
            "removed": removed,
            "nodes": nodes,
            "path_lengths": path_lengths,
            "parents": new.column("parents")[nodes],
            **{name: new.column(name)[nodes] for name in _ATTRIBUTES},
            "extent_counts": extent_counts,
            "paths": new.column("paths")[runs_of(starts, path_lengths)],
            **{name: new.column(name)[extents] for name in EXTENT_COLUMNS},
            "links": new.column("links")[runs_of(link_ends - link_lengths, link_lengths)],
            "removed_chunks": np.flatnonzero(~is_kept_chunk),
            "chunks": new_chunks,
            "chunk_ids": new.column("chunk_ids").reshape(-1, 16)[new_chunks].reshape(-1),
            "chunk_digests": new.column("chunk_digests")[new_chunks],
            "chunk_payload_lengths": new.column("chunk_payload_lengths")[new_chunks],
        },
    )


def _matched(base: Snapshot, new: Snapshot) -> Numbers:
    """For each node of `new` the node of `base` with the same path, -1 for none: shape (nodes,).

    The beginning and the end that both have are compared as bytes. The rest is matched by the hashes of the paths; with
    two equal ones the delta would be wrong, and its receiver would notice by the digest.
    """
    old_lengths, new_lengths = _path_lengths(base), _path_lengths(new)
    old_paths, new_paths = base.column("paths"), new.column("paths")
    head = _common(old_lengths, old_paths, new_lengths, new_paths)
    tail = _common(
        old_lengths[head:][::-1],
        old_paths[int(old_lengths[:head].sum()) :][::-1],
        new_lengths[head:][::-1],
        new_paths[int(new_lengths[:head].sum()) :][::-1],
    )
    old_of_new = np.full(len(new), -1, np.int64)
    old_of_new[:head] = np.arange(head)
    old_of_new[len(new) - tail :] = np.arange(len(base) - tail, len(base))
    old_marks = _hashes(base, range(head, len(base) - tail))
    new_marks = _hashes(new, range(head, len(new) - tail))
    if len(old_marks) and len(new_marks):
        # Both sorted: a search in the order of memory takes a tenth of the time.
        old_order, new_order = np.argsort(old_marks), np.argsort(new_marks)
        old_marks, new_marks = old_marks[old_order], new_marks[new_order]
        found = np.minimum(np.searchsorted(old_marks, new_marks), len(old_marks) - 1)
        matches = np.where(old_marks[found] == new_marks, head + old_order[found], -1)
        old_of_new[head + new_order] = matches
    return old_of_new


def _common(
    lengths: Numbers,
    blob: npt.NDArray[np.uint8],
    other_lengths: Numbers,
    other_blob: npt.NDArray[np.uint8],
) -> int:
    """The number of strings at the beginning that two columns have in common."""
    same = _first_difference(lengths, other_lengths)
    ends = np.cumsum(lengths[:same])
    limit = int(ends[-1]) if same else 0
    at = _first_difference(blob[:limit], other_blob[:limit])
    return same if at == limit else int(np.searchsorted(ends, at, side="right"))


def _path_lengths(snapshot: Snapshot) -> Numbers:
    ends: Numbers = snapshot.column("path_ends").astype(np.int64)
    return ends - np.concatenate(([0], ends[:-1]))


def _first_difference(one: npt.NDArray[np.integer], other: npt.NDArray[np.integer]) -> int:
    """The place of the first difference; the length of the shorter one if there is none."""
    shorter = min(len(one), len(other))
    for start in range(0, shorter, _BLOCK_BYTES):
        block = slice(start, min(start + _BLOCK_BYTES, shorter))
        differing = one[block] != other[block]
        if differing.any():
            return start + int(differing.argmax())
    return shorter


def _hashes(snapshot: Snapshot, nodes: range) -> Hashes:
    """The hashes of the paths of nodes, a block at a time: shape (n,)."""
    blocks = [
        path_hashes(
            snapshot.path_many(np.arange(first, min(first + _BLOCK_NODES, nodes.stop))),
            snapshot.header.dataset_id,
        )
        for first in range(nodes.start, nodes.stop, _BLOCK_NODES)
    ]
    return np.concatenate([np.empty(0, np.uint64), *blocks])


def _matched_chunks(base: Snapshot, new: Snapshot) -> Numbers:
    """For each chunk of `new` its number in `base`, -1 for none: shape (chunks,)."""
    numbers = {base.chunk_id(chunk): chunk for chunk in range(base.chunk_count)}
    return np.array([numbers.get(new.chunk_id(chunk), -1) for chunk in range(new.chunk_count)], np.int64)


def _changed(
    base: Snapshot, new: Snapshot, new_nodes: Numbers, old_nodes: Numbers, chunks: Numbers
) -> npt.NDArray[np.bool_]:
    """Which of these nodes, which have the same paths, differ in anything but their numbers: shape (n,)."""
    is_changed = np.zeros(len(new_nodes), np.bool_)
    for name in _ATTRIBUTES:
        is_changed |= base.column(name)[old_nodes] != new.column(name)[new_nodes]
    counts = extent_counts_of(new)[new_nodes]
    is_changed |= extent_counts_of(base)[old_nodes] != counts
    same = np.flatnonzero(~is_changed & (counts > 0))
    owners = np.repeat(same, counts[same])
    old_extents = runs_of(base.column("firsts")[old_nodes[same]].astype(np.int64), counts[same])
    new_extents = runs_of(new.column("firsts")[new_nodes[same]].astype(np.int64), counts[same])
    differs = chunks[new.column("extent_chunks")[new_extents]] != base.column("extent_chunks")[old_extents]
    for name in EXTENT_COLUMNS[1:]:
        differs |= new.column(name)[new_extents] != base.column(name)[old_extents]
    is_changed[owners[differs]] = True
    return is_changed | _links_differ(base, new, new_nodes, old_nodes)


def _links_differ(
    base: Snapshot, new: Snapshot, new_nodes: Numbers, old_nodes: Numbers
) -> npt.NDArray[np.bool_]:
    """Which of these nodes are links with different targets: shape (n,)."""
    is_link = (new.types(new_nodes) == stat.S_IFLNK) & (base.types(old_nodes) == stat.S_IFLNK)
    differs = np.zeros(len(new_nodes), np.bool_)
    for place in np.flatnonzero(is_link).tolist():
        differs[place] = base.target(int(old_nodes[place])) != new.target(int(new_nodes[place]))
    return differs
