"""What applying a chunk changes beside the entries: deletion bitmaps, totals, and which folders are not empty.

Collected while the paths are decided; how they are written is each store's own matter. No I/O.
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
    """By chunk: entries that count no more. None twice, and none that was marked before."""
    files: int = 0
    total_bytes: int = 0
    members: Counter[bytes] = field(default_factory=Counter)
    """By folder: how many live entries it has more."""

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
    """Change how much is in each folder and, where a folder thereby comes or goes, in the folder that it is in.

    `change_folder(parent, name, change)` changes one folder, and returns 1 if it came to be, -1 if it is gone, else 0.
    It is called once for each folder, inner ones first; never for the root, nor for a folder without a change.
    """
    by_depth: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
    for folder, change in members.items():
        by_depth[_depth(folder)][folder] = change
    for depth in range(max(by_depth, default=0), 0, -1):
        for folder, change in by_depth[depth].items():
            if change:
                parent, name = split_path(folder)
                by_depth[depth - 1][parent] += change_folder(parent, name, change)


def _depth(folder: bytes) -> int:
    return folder.count(b"/") + 1 if folder else 0
