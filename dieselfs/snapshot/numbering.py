"""The numbers of nodes, from the runs of rows in each folder. No I/O."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Set
from typing import NamedTuple

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.columns import starts_of
from dieselfs.names import split_path
from dieselfs.snapshot.rows import IMPLICIT


class Run(NamedTuple):
    """Consecutive nodes of several runs: the first row of each run, its rows, and the rank of its folder."""

    rows: Numbers
    counts: Numbers
    owners: Numbers


class Numbering:
    """`folders`: all folders, in the order of their nodes; a rank is a place among them. `child_firsts`,
    `child_counts`: shape (folders,). `implicit`: ranks of those without an entry, ascending. `hidden`: rows in the
    place of a folder, which are not in the snapshot, ascending. `runs`: all nodes.
    """

    def __init__(
        self,
        runs: Mapping[bytes, tuple[int, int]],
        explicit: Set[bytes],
        root_row: int,
        name_of: Callable[[int], bytes],
    ) -> None:
        """`runs`, `explicit`, `root_row`: those of `SpilledRows`; `name_of` gives the name of a row."""
        folders = _with_parents({b"", *explicit, *runs})
        folders.sort(key=lambda path: (path.count(b"/") + 1 if path else 0, path.replace(b"/", b"\0")))
        missing: dict[bytes, list[bytes]] = {}
        for path in folders:
            if path and path not in explicit:
                folder, name = split_path(path)
                missing.setdefault(folder, []).append(name)
        rows, counts, owners = array("q", [root_row]), array("q", [1]), array("q", [0])
        hidden = array("q")

        def put(first: int, end: int, rank: int) -> None:
            if first < end:
                rows.append(first)
                counts.append(end - first)
                owners.append(rank)

        for rank, folder in enumerate(folders):
            first, end = runs.get(folder, (0, 0))
            for name in missing.get(folder, ()):
                at = first + bisect_left(range(first, end), name, key=name_of)
                put(first, at, rank)
                put(IMPLICIT, IMPLICIT + 1, rank)
                is_hidden = at < end and name_of(at) == name
                if is_hidden:
                    hidden.append(at)
                first = at + is_hidden
            put(first, end, rank)
        self.folders, self.hidden = folders, np.sort(np.array(hidden, np.int64))
        self.runs = Run(*(np.array(column, np.int64) for column in (rows, counts, owners)))
        child_counts = np.bincount(self.runs.owners[1:], self.runs.counts[1:], len(folders))
        self.child_counts: Numbers = child_counts.astype(np.int64)
        self.child_firsts: Numbers = 1 + starts_of(self.child_counts)
        implicit = [rank for rank, path in enumerate(folders) if path not in explicit]
        self.implicit = np.array(implicit, np.int64)

    def blocks(self, nodes: int) -> Iterator[Run]:
        """All nodes in their order, at most `nodes` at a time."""
        rows, counts, owners = self.runs
        ends = np.cumsum(counts)
        for start in range(0, int(ends[-1]), nodes):
            stop = min(start + nodes, int(ends[-1]))
            first = int(np.searchsorted(ends, start, side="right"))
            chosen = slice(first, int(np.searchsorted(ends, stop)) + 1)
            skipped = start - int(ends[first] - counts[first])
            block = Run(rows[chosen].copy(), counts[chosen].copy(), owners[chosen])
            block.rows[0] += skipped
            block.counts[0] -= skipped
            block.counts[-1] -= int(ends[chosen.stop - 1]) - stop
            yield block


def _with_parents(folders: set[bytes]) -> list[bytes]:
    for path in list(folders):
        while path:
            path = split_path(path)[0]
            if path in folders:
                break
            folders.add(path)
    return list(folders)
