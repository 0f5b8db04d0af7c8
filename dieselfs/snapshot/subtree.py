"""The nodes below a folder, by number. No I/O.

Nodes are numbered breadth first, so each level below a folder is one range of numbers.
"""

import stat

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.snapshot.reader import ROOT, Snapshot

_TYPE_BITS = np.uint32(0o170000)


def nodes_below(snapshot: Snapshot, folder: int = ROOT) -> list[range]:
    """All nodes below a folder, level by level, ascending; empty for a node that is not a folder."""
    modes, firsts, counts = (snapshot.column(name) for name in ("modes", "firsts", "counts"))
    levels = []
    level = snapshot.children(folder)
    while level:
        levels.append(level)
        run = slice(level.start, level.stop)
        folders = level.start + np.flatnonzero(
            ((modes[run] & _TYPE_BITS) == stat.S_IFDIR) & (counts[run] > 0)
        )
        if not len(folders):
            break
        last = folders[-1]
        level = range(int(firsts[folders[0]]), int(firsts[last]) + int(counts[last]))
    return levels


def files_below(snapshot: Snapshot, folder: int = ROOT) -> Numbers:
    """The files below a folder, ascending: shape (n,). About 10 ms for a million."""
    modes = snapshot.column("modes")
    found = [
        level.start + np.flatnonzero((modes[level.start : level.stop] & _TYPE_BITS) == stat.S_IFREG)
        for level in nodes_below(snapshot, folder)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)
