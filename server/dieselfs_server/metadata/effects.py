"""The effects of applying a chunk, beside its entries: deletion bitmaps, totals, and the entry counts of folders.

A store collects them while it resolves paths, and writes them in its own way. No I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dieselfs.names import split_path

Chunk = TypeVar("Chunk", int, bytes)
"""How a store names a chunk: by its number in a table, or by its ID."""


@dataclass(eq=False)
class Effects(Generic[Chunk]):
    dead: defaultdict[Chunk, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By chunk: entries that became dead. None is listed twice, and none was dead before."""
    files: int = 0
    total_bytes: int = 0
    members: Counter[bytes] = field(default_factory=Counter)
    """By folder: the change of its number of live entries."""

    def kill(self, chunks: Iterable[Chunk], entries: Iterable[int]) -> None:
        for chunk, entry in zip(chunks, entries, strict=True):
            self.dead[chunk].append(entry)

    def add(self, other: "Effects[Chunk]") -> None:
        for chunk, entries in other.dead.items():
            self.dead[chunk] += entries
        self.files += other.files
        self.total_bytes += other.total_bytes
        self.members.update(other.members)


def change_folders(members: Mapping[bytes, int], change_folder: Callable[[bytes, bytes, int], int]) -> None:
    """Change the entry counts of folders and, where a folder becomes non-empty or empty, that of its parent.

    `change_folder(parent, name, change)` changes one folder; it returns 1 if the folder became non-empty, -1 if empty,
    else 0. It is called once for each folder with a change, inner ones first, and never for the root.
    """
    by_depth: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
    for folder, change in members.items():
        by_depth[folder.count(b"/") + 1 if folder else 0][folder] = change
    for depth in range(max(by_depth, default=0), 0, -1):
        for folder, change in by_depth[depth].items():
            if change:
                parent, name = split_path(folder)
                by_depth[depth - 1][parent] += change_folder(parent, name, change)
