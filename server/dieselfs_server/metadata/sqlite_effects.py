"""What applying a chunk changes beside the paths' own rows: deletion bitmaps, totals, and which folders are not empty.

Collected while the paths are decided, written once at the end of the same transaction.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dieselfs.names import split_path


@dataclass(eq=False)
class Effects:
    dead: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By `chunk.number`: entries that count no more. None twice, and none that was marked before."""
    files: int = 0
    total_bytes: int = 0
    members: Counter[bytes] = field(default_factory=Counter)
    """By folder: how many live entries it has more."""

    def kill(self, chunks: Iterable[int], entries: Iterable[int]) -> None:
        for chunk, entry in zip(chunks, entries, strict=True):
            self.dead[chunk].append(entry)

    def write(self, connection: sqlite3.Connection, dataset: int, now_ns: int) -> None:
        _mark_deleted(connection, self.dead, now_ns)
        _change_members(connection, dataset, self.members)
        connection.execute(
            "UPDATE dataset SET files = files + ?, total_bytes = total_bytes + ? WHERE number = ?",
            (self.files, self.total_bytes, dataset),
        )


def _mark_deleted(connection: sqlite3.Connection, dead: dict[int, list[int]], now_ns: int) -> None:
    for chunk, entries in dead.items():
        (deleted,) = connection.execute("SELECT deleted FROM chunk WHERE number = ?", (chunk,)).fetchone()
        bits = bytearray(deleted)
        for entry in entries:
            bits[entry // 8] |= 1 << entry % 8
        connection.execute(
            "UPDATE chunk SET deleted = ?, deleted_entries = deleted_entries + ?, updated_ns = ? WHERE number = ?",
            (bytes(bits), len(entries), now_ns, chunk),
        )


def _change_members(connection: sqlite3.Connection, dataset: int, members: Counter[bytes]) -> None:
    """Inner folders first: one that gets its first member, or loses its last, changes the count of its parent."""
    by_depth: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
    for folder, change in members.items():
        by_depth[_depth(folder)][folder] = change
    for depth in range(max(by_depth, default=0), 0, -1):
        for folder, change in by_depth[depth].items():
            if change:
                parent, name = split_path(folder)
                by_depth[depth - 1][parent] += _change_folder(connection, dataset, parent, name, change)


def _depth(folder: bytes) -> int:
    return folder.count(b"/") + 1 if folder else 0


def _change_folder(
    connection: sqlite3.Connection, dataset: int, parent: bytes, name: bytes, change: int
) -> int:
    """Returns 1 if the folder came to be, -1 if it is gone, else 0."""
    key = (dataset, parent, name)
    (count,) = connection.execute(
        "INSERT INTO folder (dataset, parent, name, members) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET members = members + excluded.members RETURNING members",
        (*key, change),
    ).fetchone()
    if count == 0:
        connection.execute("DELETE FROM folder WHERE (dataset, parent, name) = (?, ?, ?)", key)
        return -1
    return 1 if count == change else 0
