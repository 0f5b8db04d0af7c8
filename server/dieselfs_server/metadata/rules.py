"""The rules that all metadata stores share: effects of a chunk, files of extents, listings of folders. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Generic, TypeVar

import numpy as np

from dieselfs.chunk.format import VERSION_MAX, Op
from dieselfs.chunk.ids import chunk_name
from dieselfs.columns import starts_of
from dieselfs.errors import InvalidInput
from dieselfs.names import split_path
from dieselfs.records import EntryTable, ExtentColumns, FileRecord
from dieselfs.snapshot.builder import IMPLICIT_FOLDER_MODE

Chunk = TypeVar("Chunk", int, bytes)
"""How a store names a chunk: by its number in a table, or by its ID."""


@dataclass(eq=False)
class Effects(Generic[Chunk]):
    """The effects of applying a chunk, beside its entries; collected while paths are resolved."""

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


def next_versions(last: int, count: int, now_ns: int) -> range:
    """The next `count` versions after `last`, at least `now_ns`. Raises InvalidInput when none are left."""
    first = max(now_ns, last + 1)
    if first + count - 1 > VERSION_MAX:
        raise InvalidInput(f"cannot reserve {count} versions after {first}: none are left")
    return range(first, first + count)


def first_generation(now_ns: int) -> int:
    """A generation above all that the dataset had before, where these are not known: the seconds since 1970, as a
    dataset gets fewer chunks than that. Clients refuse a generation that is smaller than one they have seen.
    """
    return now_ns // 10**9


def check_dead(chunk_id: bytes, alive: int) -> None:
    """Raise InvalidInput for a chunk with live entries, which cannot be forgotten."""
    if alive:
        raise InvalidInput(f"chunk {chunk_name(chunk_id)} cannot be forgotten: {alive} entries are live")


FolderChange = tuple[bytes, bytes, int]
"""Parent, name, and by how much the number of members changes."""


def change_folders(
    members: Mapping[bytes, int], change_some: Callable[[Sequence[FolderChange]], Iterable[tuple[bytes, int]]]
) -> int:
    """Change the entry counts of folders and, where a folder becomes non-empty or empty, that of its parent.

    `change_some` changes folders; it returns for parents of these by how many non-empty folders each has more, or less.
    It is called once for all folders of a depth with a change, inner ones first, and never for the root. Returns by how
    many non-empty folders there are more.
    """
    total = 0
    by_depth: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
    for folder, change in members.items():
        by_depth[folder.count(b"/") + 1 if folder else 0][folder] = change
    for depth in range(max(by_depth, default=0), 0, -1):
        changes = [(*split_path(folder), change) for folder, change in by_depth[depth].items() if change]
        if changes:
            for parent, change in change_some(changes):
                by_depth[depth - 1][parent] += change
                total += change
    return total


def tiling(extents: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]] | None:
    """Extents `(place, length)` that follow each other from 0 to `size` without gap or overlap; None if there are none.

    If several chains cover the file, the longest extent at each place is used. So another extent may change the result,
    but never make it None: a complete file stays complete.
    """
    length_at: dict[int, int] = {}  # the places from which a chain leads to the end
    for place, length in sorted(extents, reverse=True):
        end = place + length
        if place not in length_at and (end == size or end in length_at):
            length_at[place] = length
    chosen: list[tuple[int, int]] = []
    place = 0
    while place < size:
        if place not in length_at:
            return None
        chosen.append((place, length_at[place]))
        place += length_at[place]
    return chosen


def implicit_folder(path: bytes) -> FileRecord:
    """The record of a folder without an entry of its own."""
    return FileRecord(path, Op.DIRECTORY, IMPLICIT_FOLDER_MODE, 0, 0, 0, b"", ())


def merge_listing(entries: Iterable[FileRecord], folders: Iterable[bytes], limit: int) -> list[FileRecord]:
    """The first `limit` records by path. Both inputs are ordered; `folders` are paths.

    A folder's own entry precedes its path alone; a folder replaces a file of the same path.
    """
    records: dict[bytes, FileRecord] = {}
    # Of equal keys, `merge` yields the entry first.
    for record in merge(entries, map(implicit_folder, folders), key=lambda record: record.path):
        if record.path not in records or records[record.path].op != Op.DIRECTORY:
            records[record.path] = record
    return list(records.values())[:limit]


class EntryBlocks(list[EntryTable]):
    """A sink that keeps all blocks."""

    add = list.append


def joined(blocks: Sequence[EntryTable]) -> EntryTable:
    """The table of all blocks of a generation."""
    folders = [folder for block in blocks for folder in block.folders]
    names = [name for block in blocks for name in block.names]
    order = np.array(sorted(range(len(names)), key=lambda row: (folders[row], names[row])), np.int64)
    row_of = np.empty_like(order)
    row_of[order] = np.arange(len(order))
    firsts = starts_of(np.array([len(block.names) for block in blocks]))
    targets = {
        int(row_of[first + row]): target
        for first, block in zip(firsts.tolist(), blocks, strict=True)
        for row, target in block.targets.items()
    }
    rows = np.concatenate(
        [row_of[first + each.extents.rows] for first, each in zip(firsts, blocks, strict=True)]
    )
    of_files = np.lexsort((np.concatenate([each.extents.places for each in blocks]), rows))
    extents = ExtentColumns(
        rows[of_files],
        *(
            np.concatenate([getattr(each.extents, name) for each in blocks])[of_files]
            for name in ("places", "chunks", "offsets", "lengths", "digests")
        ),
    )
    ops, modes, mtimes_ns, sizes, chunks, offsets, digests = (
        np.concatenate([getattr(block, name) for block in blocks])[order]
        for name in ("ops", "modes", "mtimes_ns", "sizes", "chunks", "offsets", "digests")
    )
    return EntryTable(
        blocks[-1].dataset,
        blocks[-1].chunk_table,
        [folders[row] for row in order.tolist()],
        [names[row] for row in order.tolist()],
        ops,
        modes,
        mtimes_ns,
        sizes,
        chunks,
        offsets,
        digests,
        targets,
        extents,
    )
