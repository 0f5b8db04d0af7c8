"""Applies the entries of a chunk to the SQLite tables, in the caller's transaction.

The entries go into the table `staged`. One join reads their rivals, the present entries of their paths, which are
compared as columns; one statement for each table then moves the entries that count. Few statements matter as much as
fast ones: SQLite releases the interpreter lock at every step, and to get it back from a busy thread can take 5 ms.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs.digests import EXTENT_DIGESTS, NO_DIGEST
from dieselfs_server.metadata.rules import Effects, change_folders
from dieselfs_server.metadata.sqlite.extents import StoredExtent, apply_extents, drop_overtaken

_STAGED_COLUMNS = "folder, name, entry, version, op, mode, mtime_ns, size, offset, digest_a, digest_b, target"
_STAGED_WIDTH = _STAGED_COLUMNS.count(",") + 1
_ROWS_PER_INSERT_MAX = 1024
"""Rows of one INSERT; smaller ones have a power of two, so that few different statements are compiled."""
assert _ROWS_PER_INSERT_MAX * _STAGED_WIDTH <= 32_766  # SQLite's limit of parameters

_SPANNING = 0  # instead of a chunk number (from 1 on): the file spans chunks


@dataclass(frozen=True, eq=False)
class _Entries:
    """The entries of the chunk as SQLite stores them: signed numbers, split paths. Arrays have shape (entries,)."""

    chunk: int
    chunk_id: bytes
    header: ChunkHeader
    folders: list[bytes]
    names: list[bytes]
    is_file: npt.NDArray[np.bool_]
    sizes: Numbers
    lengths: Numbers
    offsets: Numbers
    digest_halves: Numbers
    """The digests of files as two numbers each, shape (entries, 2)."""
    versions: Numbers

    @classmethod
    def of(cls, chunk: int, chunk_id: bytes, header: ChunkHeader) -> "_Entries":
        parts = [path.rpartition(b"/") for path in header.paths]
        is_file = header.ops == Op.FILE
        return cls(
            chunk,
            chunk_id,
            header,
            [folder for folder, _, _ in parts],
            [name for _, _, name in parts],
            is_file,
            header.sizes.astype(np.int64),
            header.lengths.astype(np.int64),
            np.where(is_file, header.offsets, 0).astype(np.int64),
            np.where(is_file, header.digests, np.void(NO_DIGEST)).view(np.int64).reshape(-1, 2),
            header.versions.astype(np.int64),
        )


@dataclass(frozen=True, eq=False)
class _Rivals:
    """The present entries of the paths of staged entries, as columns; `staged` has the staged entry of each."""

    staged: Numbers
    versions: Numbers
    ops: Numbers
    sizes: Numbers
    chunks: Numbers
    entries: Numbers

    def take(self, rows: npt.NDArray[np.bool_]) -> "_Rivals":
        return _Rivals(*(column[rows] for column in vars(self).values()))


def apply_entries(
    connection: sqlite3.Connection, dataset: int, chunk: int, chunk_id: bytes, header: ChunkHeader
) -> Effects[int]:
    """Apply the entries of chunk number `chunk`, which is new. Returns the effects, which are not written yet."""
    effects: Effects[int] = Effects()
    entries = _Entries.of(chunk, chunk_id, header)
    is_extent = entries.is_file & (entries.lengths != entries.sizes)
    whole = _newest_of_each_path(entries, np.flatnonzero(~is_extent), effects)
    _stage(connection, entries, whole)
    rivals = _rivals(connection, dataset)
    is_beaten = _beaten(connection, entries, rivals)
    losing = rivals.staged[~is_beaten]
    if len(losing):
        effects.kill([chunk] * len(losing), losing.tolist())
        connection.execute(
            "DELETE FROM staged WHERE entry IN (SELECT value FROM json_each(?))", (str(losing.tolist()),)
        )
        whole = np.setdiff1d(whole, losing, assume_unique=True)
    beaten = rivals.take(is_beaten)
    _count(entries, whole, beaten, effects)
    _move_to_tables(connection, dataset, entries, whole, beaten)
    drop_overtaken(connection, dataset, effects)
    connection.execute("DELETE FROM staged")
    if is_extent.any():
        apply_extents(connection, _extents(dataset, entries, np.flatnonzero(is_extent)), chunk_id, effects)
    return effects


def _newest_of_each_path(entries: _Entries, rows: Numbers, effects: Effects[int]) -> Numbers:
    """Of the rows of each path in this chunk, the one that counts; the others are dead on arrival."""
    paths, versions = entries.header.paths, entries.versions.tolist()
    newest: dict[bytes, int] = {}
    for row in rows.tolist():
        rival = newest.setdefault(paths[row], row)
        if rival != row:
            loser, newest[paths[row]] = sorted((rival, row), key=lambda entry: (versions[entry], entry))
            effects.dead[entries.chunk].append(loser)
    return np.array(sorted(newest.values()), np.int64)


def _stage(connection: sqlite3.Connection, entries: _Entries, rows: Numbers) -> None:
    header, picked = entries.header, rows.tolist()
    links = set(np.flatnonzero(header.ops == Op.SYMLINK).tolist())
    columns: list[npt.NDArray[Any]] = [entries.versions, header.ops, header.modes, header.mtimes_ns]
    columns += [entries.sizes, entries.offsets, *entries.digest_halves.T]
    rows_of_values = zip(
        [entries.folders[row] for row in picked],
        [entries.names[row] for row in picked],
        picked,
        *(column[rows].tolist() for column in columns),
        [header.target(row) if row in links else None for row in picked],
        strict=True,
    )
    values = list(chain.from_iterable(rows_of_values))
    row_of_parameters = f"({', '.join('?' * _STAGED_WIDTH)})"
    start, count = 0, _ROWS_PER_INSERT_MAX
    while start < len(picked):
        while count > len(picked) - start:
            count //= 2
        connection.execute(
            f"INSERT INTO staged ({_STAGED_COLUMNS}) VALUES {', '.join([row_of_parameters] * count)}",
            values[start * _STAGED_WIDTH : (start + count) * _STAGED_WIDTH],
        )
        start += count


def _rivals(connection: sqlite3.Connection, dataset: int) -> _Rivals:
    """SQLite returns one row, with a list of numbers in each column: a thousand rows would be a thousand steps."""
    columns = connection.execute(
        "SELECT group_concat(staged), group_concat(version), group_concat(op), group_concat(size), "
        "group_concat(chunk), group_concat(entry) FROM ("
        "SELECT s.entry AS staged, e.version, e.op, e.size, "
        f"ifnull(e.chunk, {_SPANNING}) AS chunk, ifnull(e.entry, 0) AS entry FROM staged AS s CROSS JOIN entry AS e "
        "ON e.dataset = ? AND e.folder = s.folder AND e.name = s.name "
        f"UNION ALL SELECT s.entry, t.version, {int(Op.DELETE)}, 0, t.chunk, t.entry "
        "FROM staged AS s CROSS JOIN tombstone AS t "
        "ON t.dataset = ? AND t.folder = s.folder AND t.name = s.name)",
        (dataset, dataset),
    ).fetchone()
    return _Rivals(*map(parse_numbers, columns))


def parse_numbers(text: str | None) -> Numbers:
    """The numbers of a `group_concat`, which is NULL for no rows."""
    return np.fromstring(text or "", np.int64, sep=",")


def digests_of(halves: Sequence[Numbers]) -> npt.NDArray[np.void]:
    """The digests of which these are the first and the last numbers: shape (n,)."""
    return np.ascontiguousarray(np.stack(halves, axis=1)).view(EXTENT_DIGESTS)[:, 0]


def _beaten(connection: sqlite3.Connection, entries: _Entries, rivals: _Rivals) -> npt.NDArray[np.bool_]:
    """Which rivals are older than the staged entries. Of equal versions, the one in the newer chunk counts."""
    versions = entries.versions[rivals.staged]
    is_beaten = versions > rivals.versions
    for tie in np.flatnonzero(versions == rivals.versions).tolist():
        rival_chunk = int(rivals.chunks[tie])
        if rival_chunk == _SPANNING:
            is_beaten[tie] = True
        else:
            query = "SELECT chunk_id FROM chunk WHERE number = ?"
            (rival_id,) = connection.execute(query, (rival_chunk,)).fetchone()
            is_beaten[tie] = entries.chunk_id > rival_id
    return is_beaten


def _count(entries: _Entries, whole: Numbers, beaten: _Rivals, effects: Effects[int]) -> None:
    """Count the entries `whole` instead of the rivals that they replace."""
    is_dead = beaten.chunks != _SPANNING  # extents are marked when their file is dropped
    effects.kill(beaten.chunks[is_dead].tolist(), beaten.entries[is_dead].tolist())
    effects.files += int(entries.is_file[whole].sum()) - int((beaten.ops == Op.FILE).sum())
    effects.total_bytes += int(entries.sizes[whole].sum()) - int(beaten.sizes.sum())
    was_live = np.zeros(len(entries.header), bool)
    was_live[beaten.staged[beaten.ops != Op.DELETE]] = True
    is_live = entries.header.ops != Op.DELETE
    effects.members.update(_folders(entries, whole[(is_live & ~was_live)[whole]]))
    effects.members.subtract(_folders(entries, whole[(was_live & ~is_live)[whole]]))


def _folders(entries: _Entries, rows: Numbers) -> list[bytes]:
    return [entries.folders[row] for row in rows.tolist()]


def _move_to_tables(
    connection: sqlite3.Connection, dataset: int, entries: _Entries, whole: Numbers, beaten: _Rivals
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO entry "
        "(dataset, folder, name, version, op, mode, mtime_ns, size, chunk, entry, offset, digest_a, digest_b, target) "
        "SELECT ?, folder, name, version, op, mode, mtime_ns, size, ?, entry, offset, digest_a, digest_b, target "
        f"FROM staged WHERE op <> {int(Op.DELETE)}",
        (dataset, entries.chunk),
    )
    if (entries.header.ops[whole] == Op.DELETE).any():
        connection.execute(
            "DELETE FROM entry WHERE dataset = ? AND (folder, name) IN "
            f"(SELECT folder, name FROM staged WHERE op = {int(Op.DELETE)})",
            (dataset,),
        )
        connection.execute(
            "INSERT OR REPLACE INTO tombstone (dataset, folder, name, version, chunk, entry) "
            f"SELECT ?, folder, name, version, ?, entry FROM staged WHERE op = {int(Op.DELETE)}",
            (dataset, entries.chunk),
        )
    if (beaten.ops == Op.DELETE).any():
        connection.execute(
            "DELETE FROM tombstone WHERE dataset = ? AND (folder, name) IN "
            f"(SELECT folder, name FROM staged WHERE op <> {int(Op.DELETE)})",
            (dataset,),
        )


def _extents(dataset: int, entries: _Entries, rows: Numbers) -> Iterator[StoredExtent]:
    header = entries.header
    file_columns = (entries.versions, entries.sizes, header.places, entries.lengths)
    columns = (entries.offsets, *entries.digest_halves.T, header.modes, header.mtimes_ns)
    for row in rows.tolist():
        path = (dataset, entries.folders[row], entries.names[row])
        place = (int(column[row]) for column in file_columns)
        rest = (int(column[row]) for column in columns)
        yield StoredExtent._make((*path, *place, entries.chunk, row, *rest))


def write_effects(connection: sqlite3.Connection, dataset: int, effects: Effects[int], now_ns: int) -> None:
    """Write the effects once, at the end of the transaction."""
    for chunk, entries in effects.dead.items():
        (deleted,) = connection.execute("SELECT deleted FROM chunk WHERE number = ?", (chunk,)).fetchone()
        bits = bytearray(deleted)
        for entry in entries:
            bits[entry // 8] |= 1 << entry % 8
        connection.execute(
            "UPDATE chunk SET deleted = ?, deleted_entries = deleted_entries + ?, updated_ns = ? WHERE number = ?",
            (bytes(bits), len(entries), now_ns, chunk),
        )
    change_folders(effects.members, partial(_change_folder, connection, dataset))
    connection.execute(
        "UPDATE dataset SET files = files + ?, total_bytes = total_bytes + ? WHERE number = ?",
        (effects.files, effects.total_bytes, dataset),
    )


def _change_folder(
    connection: sqlite3.Connection, dataset: int, parent: bytes, name: bytes, change: int
) -> int:
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
