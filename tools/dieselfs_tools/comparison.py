"""Compares two folders: names, types, modes, times, link targets, and every byte.

This module reads files.
"""

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from dieselfs.names import printable

READ_BYTES = 1 << 20
DIFFERENCES_KEPT_MAX = 20


@dataclass
class Comparison:
    """Numbers of what was compared, and the differences, of which `shown` has at most 20."""

    files: int = 0
    folders: int = 0
    links: int = 0
    total_bytes: int = 0
    differences: int = 0
    shown: list[str] = field(default_factory=list)

    def differ(self, path: bytes, what: str) -> None:
        self.differences += 1
        if len(self.shown) < DIFFERENCES_KEPT_MAX:
            self.shown.append(f"{printable(path) or '.'}: {what}")


def compare_trees(first: bytes, second: bytes, left_out: Collection[bytes] = ()) -> Comparison:
    """Compare two folders with their content, without folders in `first` whose names are `left_out`."""
    comparison = Comparison()
    pending = [b""]
    while pending:
        folder = pending.pop()
        comparison.folders += 1
        _compare_status(comparison, first, second, folder)
        ours, theirs = (set(os.listdir(os.path.join(top, folder))) for top in (first, second))
        ours -= set(left_out)
        for name in sorted(ours ^ theirs):
            comparison.differ(os.path.join(folder, name), "is only in one of them")
        for name in sorted(ours & theirs, reverse=True):
            path = os.path.join(folder, name)
            if _is_folder(first, path) and _is_folder(second, path):
                pending.append(path)
            elif _compare_status(comparison, first, second, path):
                _compare_content(comparison, first, second, path)
    return comparison


def _is_folder(top: bytes, path: bytes) -> bool:
    return stat.S_ISDIR(os.lstat(os.path.join(top, path)).st_mode)


def _compare_status(comparison: Comparison, first: bytes, second: bytes, path: bytes) -> bool:
    """Compare type, mode, time and, of files, size; returns whether the types are the same."""
    ours, theirs = (os.lstat(os.path.join(top, path)) for top in (first, second))
    if stat.S_IFMT(ours.st_mode) != stat.S_IFMT(theirs.st_mode):
        comparison.differ(path, "is not of the same type")
        return False
    if ours.st_mode != theirs.st_mode:
        comparison.differ(path, f"has mode {stat.filemode(ours.st_mode)} and {stat.filemode(theirs.st_mode)}")
    if ours.st_mtime_ns != theirs.st_mtime_ns:
        comparison.differ(path, f"has time {ours.st_mtime_ns} and {theirs.st_mtime_ns} ns")
    if stat.S_ISREG(ours.st_mode) and ours.st_size != theirs.st_size:
        comparison.differ(path, f"has {ours.st_size} and {theirs.st_size} bytes")
    return True


def _compare_content(comparison: Comparison, first: bytes, second: bytes, path: bytes) -> None:
    places = [os.path.join(top, path) for top in (first, second)]
    if os.path.islink(places[0]):
        comparison.links += 1
        if os.readlink(places[0]) != os.readlink(places[1]):
            comparison.differ(path, "does not lead to the same place")
        return
    comparison.files += 1
    offset = 0
    with open(places[0], "rb", 0) as ours, open(places[1], "rb", 0) as theirs:
        for one, other in _blocks(ours.fileno(), theirs.fileno()):
            comparison.total_bytes += len(one)
            if one != other:
                comparison.differ(path, f"differs in the block from byte {offset} on")
                return
            offset += len(one)


def _blocks(first: int, second: int) -> Iterator[tuple[bytes, bytes]]:
    offset = 0
    while True:
        one, other = os.pread(first, READ_BYTES, offset), os.pread(second, READ_BYTES, offset)
        if not one and not other:
            return
        yield one, other
        offset += len(one) or len(other)
