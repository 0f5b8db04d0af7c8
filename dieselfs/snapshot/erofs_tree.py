"""The entries of an EROFS image, and the names in its folders, in parts. No I/O."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import starts_of
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.splice import runs_of
from dieselfs.snapshot.subtree import nodes_below

AT_ONCE = 1 << 14
"""Entries, or names, whose columns are made at a time: they fit into the cache of a processor."""
TYPE_SHIFT = 12
FOLDER, FILE, LINK = 0o04, 0o10, 0o12
"""Types of entries: the upper bits of a mode."""
DOT, DOTS = ord("."), b".."


@dataclass(frozen=True, eq=False, slots=True)
class Names:
    """Some of the names in folders, each of shape (n,): the entry that a name leads to and its node, the bytes of the
    name, and whether it is `.` or `..`.
    """

    targets: Numbers
    nodes: Numbers
    lengths: Numbers
    is_dot: npt.NDArray[np.bool_]
    is_dots: npt.NDArray[np.bool_]

    def is_of(self, entry: int) -> npt.NDArray[np.bool_]:
        """Which of them is the name of this entry in its folder."""
        is_of: npt.NDArray[np.bool_] = (self.targets == entry) & ~self.is_dot & ~self.is_dots
        return is_of


class Tree:
    """The entries of the image. An entry is a number below `count`; entry 0 is the root. They have the order of the
    nodes of the snapshot, breadth first: behind the root come the entries in the first folder, those in the second, and
    so on. `control`: the entry of the control folder, 0 without one; its node is the root.

    `folders`, `links`: entries, ascending. Shape (folders,), by rank, the place of a folder among them: `child_firsts`,
    `child_counts`; `subfolders`, those that listings show; `name_bytes`, of all names in it; `parents`, the entry of
    the folder that it is in; `dots`, the places of `.` and `..` among its names, shape (folders, 2). `name_bounds`:
    shape (folders + 1,), the places of the names of each folder among those of all; they are sorted in each.
    """

    def __init__(self, snapshot: Snapshot, folder: int, control: bytes) -> None:
        self.snapshot, self.control_name = snapshot, control
        self.control, runs = _runs(snapshot, folder, control)
        self._firsts = np.array([run.start for run in runs if run])
        lengths = np.array([len(run) for run in runs if run])
        self._starts, self.count = starts_of(lengths), int(lengths.sum())
        found: tuple[list[Numbers], list[Numbers]] = [], []
        for first, run in self.runs(0, self.count, AT_ONCE):
            types = self.types(run)
            others = np.flatnonzero(types != FILE)
            for entries, kind in zip(found, (FOLDER, LINK), strict=True):
                entries.append(first + others[types[others] == kind])
        self.folders, self.links = (np.concatenate(entries) for entries in found)
        nodes = self.nodes(self.folders)
        self.child_counts = snapshot.column("counts")[nodes].astype(np.int64)
        self.child_counts[1:][self.folders[1:] == self.control] = 0
        firsts = snapshot.column("firsts")[nodes].astype(np.int64)
        self.name_bytes = _sums(snapshot.column("name_lengths"), firsts, self.child_counts)
        if control and snapshot.child(folder, control) < 0:
            self.child_counts[0] += 1
            self.name_bytes[0] += len(control)
        self.name_bytes += 1 + len(DOTS)
        self.child_firsts = 1 + starts_of(self.child_counts)
        ranks = np.searchsorted(self.child_firsts, self.folders, side="right") - 1
        self.parents = self.folders[ranks]
        self.parents[0] = 0
        self.subfolders = np.bincount(ranks[1:], minlength=len(ranks))
        self.subfolders[0] -= self.control > 0  # listings do not show it
        self.name_bounds = np.concatenate([[0], np.cumsum(self.child_counts + 2)])
        self.dots = self._dots()

    def nodes(self, entries: Numbers) -> Numbers:
        """The nodes of these entries, in the snapshot: shape (n,)."""
        bounds = int(entries.min(initial=self.count)), int(entries.max(initial=0))
        first, last = (np.searchsorted(self._starts, bounds, side="right") - 1).tolist()
        if first == last:
            return entries + int(self._firsts[first] - self._starts[first])
        runs = np.searchsorted(self._starts, entries, side="right") - 1
        nodes: Numbers = entries + (self._firsts - self._starts)[runs]
        return nodes

    def runs(self, first: int, end: int, at_once: int) -> Iterator[tuple[int, slice]]:
        """The entries from `first` up to `end`, in parts of at most `at_once` that are consecutive nodes: the first
        entry and the nodes of each. A slice of a column copies nothing.
        """
        stops = [*self._starts[1:].tolist(), self.count]
        for start, stop, shift in zip(self._starts, stops, self._firsts - self._starts, strict=True):
            for part in range(max(int(start), first), min(stop, end), at_once):
                yield part, slice(part + int(shift), min(part + at_once, stop, end) + int(shift))

    def types(self, nodes: Numbers | slice) -> npt.NDArray[np.uint32]:
        types: npt.NDArray[np.uint32] = np.right_shift(self.snapshot.column("modes")[nodes], TYPE_SHIFT)
        return types

    def _name(self, entry: int) -> bytes:
        if entry == self.control:
            return self.control_name
        return self.snapshot.name(int(self.nodes(np.array([entry]))[0]))

    def _dots(self) -> Numbers:
        """`.` and `..` come after the names that sort before them, such as `-x` and `.-x`: few folders have those."""
        dots = np.tile([0, 1], (len(self.folders), 1))
        filled = np.flatnonzero((self.child_counts > 0) & (self.child_firsts != self.control))
        nodes = self.nodes(self.child_firsts[filled])
        ends = self.snapshot.column("path_ends")[nodes].astype(np.int64)
        starts = ends - self.snapshot.column("name_lengths")[nodes]
        is_early = self.snapshot.column("paths")[starts] <= DOT
        for rank in filled[is_early].tolist():
            first = int(self.child_firsts[rank])
            entries = range(first, first + int(self.child_counts[rank]))
            dots[rank] += [bisect_left(entries, name, key=self._name) for name in (DOTS[:1], DOTS)]
        return dots

    def name_lengths(self, first: int, end: int) -> Numbers:
        """The lengths of the names at these places among all: shape (end - first,)."""
        bounds = self.name_bounds
        some = slice(
            int(np.searchsorted(bounds, first, side="right")) - 1,
            int(np.searchsorted(bounds, end, side="left")),
        )
        dots = bounds[some, np.newaxis] + self.dots[some] - first
        is_inside = (dots >= 0) & (dots < end - first)
        is_entry = np.ones(end - first, np.bool_)
        is_entry[dots[is_inside]] = False
        # All but `.` and `..` are entries, in their order from the second on.
        entry = 1 + first - 2 * some.start - int((dots < 0).sum())
        last = entry + int(is_entry.sum())
        column = self.snapshot.column("name_lengths")
        parts = [column[run].astype(np.int64) for _, run in self.runs(entry, last, AT_ONCE)]
        lengths = np.empty(end - first, np.int64)
        lengths[is_entry] = np.concatenate([np.empty(0, np.int64), *parts])
        for length, chosen in ((1, 0), (len(DOTS), 1)):
            lengths[dots[:, chosen][is_inside[:, chosen]]] = length
        if self.control and entry <= self.control < last:
            lengths[np.flatnonzero(is_entry)[self.control - entry]] = len(self.control_name)
        return lengths

    def names(self, firsts: Numbers, counts: Numbers) -> Names:
        """The names in runs of places among all, each of which lies in one folder."""
        ranks = np.searchsorted(self.name_bounds, firsts, side="right") - 1
        in_folder = runs_of(firsts - self.name_bounds[ranks], counts)
        dot, dots = np.repeat(self.dots[ranks], counts, axis=0).T
        is_dot, is_dots = in_folder == dot, in_folder == dots
        targets = np.repeat(self.child_firsts[ranks], counts) + in_folder
        targets -= (in_folder > dot).astype(np.int64) + (in_folder > dots)
        targets[is_dot] = np.repeat(self.folders[ranks], counts)[is_dot]
        targets[is_dots] = np.repeat(self.parents[ranks], counts)[is_dots]
        nodes = self.nodes(targets)
        lengths = self.snapshot.column("name_lengths")[nodes].astype(np.int64)
        lengths[is_dot], lengths[is_dots] = 1, len(DOTS)
        names = Names(targets, nodes, lengths, is_dot, is_dots)
        if self.control:
            lengths[names.is_of(self.control)] = len(self.control_name)
        return names


def _runs(snapshot: Snapshot, folder: int, control: bytes) -> tuple[int, list[range]]:
    """The entry of the control folder, or 0, and the nodes of all entries, in runs."""
    levels, gone, entry = nodes_below(snapshot, folder), [range(0)], 0
    if control:
        children = snapshot.children(folder)
        place = bisect_left(children, control, key=snapshot.name)
        entry, at = 1 + place, children.start + place
        hidden = snapshot.child(folder, control)
        gone = [range(at, at + (hidden >= 0))]
        if hidden >= 0:
            gone += nodes_below(snapshot, hidden)
        levels = levels or [children]
    root = range(folder, folder + 1)
    runs = [root]
    for depth, level in enumerate(levels):
        hole = gone[depth] if depth < len(gone) else range(0)
        is_cut = bool(hole) or (entry > 0 and not depth)
        first, last = (hole.start, hole.stop) if is_cut else (level.stop, level.stop)
        runs += [range(level.start, first), *([root] if entry and not depth else []), range(last, level.stop)]
    return entry, runs


def _sums(column: npt.NDArray[np.uint8], firsts: Numbers, counts: Numbers) -> Numbers:
    """The sums of ascending runs of a column: shape (runs,)."""
    sums = np.zeros(len(counts), np.int64)
    filled = np.flatnonzero(counts)
    borders = np.stack([firsts[filled], firsts[filled] + counts[filled]], 1).ravel()
    if len(borders):
        borders = borders[:-1] if borders[-1] == len(column) else borders
        sums[filled] = np.add.reduceat(column, borders, dtype=np.int64)[::2]
    return sums
