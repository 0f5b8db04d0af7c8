"""Compares two folders: names, types, modes, times, link targets, and every byte. This module reads files."""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field

from dieselfs.names import printable

READ_BYTES = 1 << 20
DIFFERENCES_KEPT_MAX = 20


@dataclass
class Comparison:
    """The numbers of compared entries and of differences; `shown` has the first 20 differences."""

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


def compare_trees(
    first: bytes, second: bytes, left_out: Collection[bytes] = (), is_mount: bool = False
) -> Comparison:
    """Compare two folders with their content, without folders in `first` whose names are `left_out`, and without the
    mode of the root if the second `is_mount`: it keeps other users out.
    """
    found = Comparison()
    pending = [b""]
    while pending:
        path = pending.pop()
        places = [os.path.join(top, path) for top in (first, second)]
        ours, theirs = map(os.lstat, places)
        if stat.S_IFMT(ours.st_mode) != stat.S_IFMT(theirs.st_mode):
            found.differ(path, "is not of the same type")
            continue
        if ours.st_mode != theirs.st_mode and not (is_mount and not path):
            modes = f"{stat.filemode(ours.st_mode)} and {stat.filemode(theirs.st_mode)}"
            found.differ(path, f"has mode {modes}")
        if ours.st_mtime_ns != theirs.st_mtime_ns:
            found.differ(path, f"has time {ours.st_mtime_ns} and {theirs.st_mtime_ns} ns")
        if stat.S_ISDIR(ours.st_mode):
            found.folders += 1
            names, others = map(set, map(os.listdir, places))
            names -= set(left_out)
            for name in sorted(names ^ others):
                found.differ(os.path.join(path, name), "is only in one of them")
            pending += [os.path.join(path, name) for name in sorted(names & others, reverse=True)]
        elif stat.S_ISLNK(ours.st_mode):
            found.links += 1
            if os.readlink(places[0]) != os.readlink(places[1]):
                found.differ(path, "does not lead to the same place")
        else:
            found.files += 1
            if ours.st_size != theirs.st_size:
                found.differ(path, f"has {ours.st_size} and {theirs.st_size} bytes")
            _compare_content(found, path, *places)
    return found


def _compare_content(found: Comparison, path: bytes, first: bytes, second: bytes) -> None:
    offset = 0
    with open(first, "rb", 0) as ours, open(second, "rb", 0) as theirs:
        while (one := ours.read(READ_BYTES)) == (other := theirs.read(READ_BYTES)) and one:
            offset += len(one)
    found.total_bytes += offset + len(one)
    if one != other:
        found.differ(path, f"differs in the block from byte {offset} on")
