"""What a folder of a snapshot has, in numbers, and what differs between two snapshots, as the page plots it. No I/O."""

import stat
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.digests import NO_DIGEST
from dieselfs.names import CONTROL_FOLDER, printable
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below, nodes_below

LARGEST_SHOWN, SMALLEST_SHOWN = 20, 5
"""Folders in the plot: those with most files, and those with fewest."""
CHANGES_SHOWN = 100
"""Paths of each kind of change."""
STEP = 20_000
"""Paths that are looked up at a time: meanwhile no other thread of the server runs."""


def shape_of(snapshot: Snapshot, path: bytes) -> dict[str, Any]:
    """Files and bytes below each folder in a folder, which are its classes, and the sizes of its files by powers of
    two. Raises NotFound, InvalidInput. Less than 0.1 s for a million files.
    """
    folder = snapshot.require_folder(path)
    names, counts, lengths = _classes(snapshot, folder)
    order = np.argsort(-counts, kind="stable")
    shown = (
        order
        if len(order) <= LARGEST_SHOWN + SMALLEST_SHOWN
        else np.r_[order[:LARGEST_SHOWN], order[-SMALLEST_SHOWN:]]
    )
    sizes = snapshot.column("sizes")[files_below(snapshot, folder)].astype(np.int64)
    bins = (
        np.bincount(np.where(sizes > 0, np.frexp(sizes.astype(np.float64))[1], 0)).tolist()
        if len(sizes)
        else []
    )
    return {
        "files": len(sizes),
        "bytes": int(sizes.sum()),
        "folders": len(names),
        "median_files": float(np.median(counts)) if len(counts) else 0.0,
        "classes": [
            {
                "name": printable(names[place]),
                "path": quote(path + b"/" + names[place] if path else names[place]),
                "files": int(counts[place]),
                "bytes": int(lengths[place]),
            }
            for place in shown.tolist()
        ],
        "omitted": len(names) - len(shown),
        "sizes": [{"below": 1 << power, "files": files} for power, files in enumerate(bins) if files],
    }


def _classes(snapshot: Snapshot, folder: int) -> tuple[list[bytes], Numbers, Numbers]:
    """The folders in a folder, without CONTROL_FOLDER: names, and the number and bytes of the files below each."""
    levels = nodes_below(snapshot, folder)
    sizes, parents = snapshot.column("sizes"), snapshot.column("parents")
    if not levels:
        return [], np.empty(0, np.int64), np.empty(0, np.int64)
    first = levels[0]
    counts, lengths = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    owners = np.arange(len(first))  # of each node of a level: its place in the first one
    for above, level in pairwise(levels):
        run = slice(level.start, level.stop)
        owners = owners[parents[run].astype(np.int64) - above.start]
        is_file = snapshot.types(run) == stat.S_IFREG
        np.add.at(counts, owners[is_file], 1)
        np.add.at(lengths, owners[is_file], sizes[run][is_file].astype(np.int64))
    is_folder = snapshot.types(slice(first.start, first.stop)) == stat.S_IFDIR
    is_folder &= np.arange(first.start, first.stop) != snapshot.find(CONTROL_FOLDER.encode())
    nodes = first.start + np.flatnonzero(is_folder)
    return [snapshot.name(int(node)) for node in nodes], counts[is_folder], lengths[is_folder]


def changes_between(old: Snapshot, new: Snapshot) -> dict[str, Any]:
    """The files that are only in one of two snapshots of a dataset, and those with other content: their number, bytes,
    and first paths. Content is compared by the digests of extents, and by the time where there are none.
    """
    files = files_below(old)
    found = np.full(len(files), -1)
    for start in range(0, len(files), STEP):
        run = slice(start, start + STEP)
        found[run] = new.find_many(old.path_many(files[run]))
    is_kept = (found >= 0) & (new.types(np.maximum(found, 0)) == stat.S_IFREG)
    kept, now = files[is_kept], found[is_kept]
    changed = now[~_have_same_content(old, kept, new, now)]
    return {
        "added": _listed(new, np.setdiff1d(files_below(new), now, assume_unique=True)),
        "removed": _listed(old, files[~is_kept]),
        "changed": _listed(new, changed),
        "same": len(kept) - len(changed),
    }


def _have_same_content(
    old: Snapshot, nodes: Numbers, new: Snapshot, others: Numbers
) -> npt.NDArray[np.bool_]:
    """Of pairs of files."""
    is_same: npt.NDArray[np.bool_] = old.column("sizes")[nodes] == new.column("sizes")[others]
    counts = old.column("counts")[nodes]
    is_same &= counts == new.column("counts")[others]
    one = np.flatnonzero(is_same & (counts == 1))
    first, second = (
        snapshot.column("extent_digests")
        .view(np.uint64)
        .reshape(-1, 2)[snapshot.column("firsts")[each[one]].astype(np.int64)]
        for snapshot, each in ((old, nodes), (new, others))
    )
    is_known = (first != np.frombuffer(NO_DIGEST, np.uint64)).any(1)
    is_as_old = old.column("mtimes_ns")[nodes[one]] == new.column("mtimes_ns")[others[one]]
    is_same[one] = (first == second).all(1) & (is_known | is_as_old)
    for place in np.flatnonzero(is_same & (counts > 1)).tolist():  # large files, which are few
        parts, others_parts = (
            [(extent.place, extent.digest) for extent in snapshot.extents(int(each[place]))]
            for snapshot, each in ((old, nodes), (new, others))
        )
        is_same[place] = parts == others_parts
    return is_same


def _listed(snapshot: Snapshot, nodes: Numbers) -> dict[str, Any]:
    sizes = snapshot.column("sizes")[nodes].astype(np.int64)
    shown = [
        {"name": printable(snapshot.path(int(node))), "bytes": snapshot.size(int(node))}
        for node in nodes[:CHANGES_SHOWN]
    ]
    return {"files": len(nodes), "bytes": int(sizes.sum()), "first": shown}
