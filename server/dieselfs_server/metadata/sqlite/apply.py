"""Applies the entries of a chunk to the SQLite tables, in the caller's transaction.

The entries go into the table `staged`. One join reads their rivals, the present entries of their paths, which are
compared as columns; one statement for each table then moves the entries that count. Few statements matter as much as
fast ones: SQLite releases the interpreter lock at every step, and to get it back from a busy thread can take 5 ms.

A chunk has few extents of files that span chunks, so each is handled on its own. A file that spans chunks loses to an
entry of the same version, and of two sizes the larger one counts.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs.digests import EXTENT_DIGESTS, NO_DIGEST
from dieselfs_server.metadata.rules import Effects, FolderChange, change_folders, tiling

_PATH = "(dataset, folder, name) = (:dataset, :folder, :name)"
_FILE = "(dataset, folder, name, version, size) = (:dataset, :folder, :name, :version, :size)"
_EXTENT = (
    "(dataset, folder, name, version, size, place, length)"
    " = (:dataset, :folder, :name, :version, :size, :place, :length)"
)


class ExtentRow(NamedTuple):
    """A row of the table `piece`, without `in_use`; the first five fields identify the file, a row of `assembly`."""

    dataset: int
    folder: bytes
    name: bytes
    version: int
    size: int
    place: int
    length: int
    chunk: int
    entry: int
    offset: int
    digest_a: int
    digest_b: int
    mode: int
    mtime_ns: int


class _Live(NamedTuple):
    """The live entry or the tombstone of a path. `chunk` is None for a file that spans chunks."""

    version: int
    op: int
    size: int
    chunk: int | None
    entry: int | None


def drop_overtaken(connection: sqlite3.Connection, dataset: int, effects: Effects[int]) -> None:
    """Drop files that span chunks and are not newer than the entries in `staged`, which all count."""
    if connection.execute("SELECT 1 FROM assembly WHERE dataset = ? LIMIT 1", (dataset,)).fetchone() is None:
        return
    overtaken = connection.execute(
        "SELECT a.folder, a.name, a.version, a.size FROM staged AS s CROSS JOIN assembly AS a "
        "ON a.dataset = ? AND a.folder = s.folder AND a.name = s.name AND a.version <= s.version",
        (dataset,),
    ).fetchall()
    for file in overtaken:
        _drop_file(connection, (dataset, *file), effects)


def apply_extents(
    connection: sqlite3.Connection, extents: Iterable[ExtentRow], chunk_id: bytes, effects: Effects[int]
) -> None:
    """Store `extents`, all of chunk `chunk_id`, and make the files live that they complete."""
    grown = {extent[:5]: extent for extent in extents if _gather(connection, extent, chunk_id, effects)}
    for extent in grown.values():
        _assemble(connection, extent, effects)


def _gather(
    connection: sqlite3.Connection, extent: ExtentRow, chunk_id: bytes, effects: Effects[int]
) -> bool:
    """Store the extent unless it is out of date; returns whether that may complete its file."""
    fields = extent._asdict()
    live = _live_at(connection, extent)
    if live is not None and _comes_after(live, extent):
        effects.dead[extent.chunk].append(extent.entry)
        return False
    copy = connection.execute(
        "SELECT chunk, entry, (SELECT chunk_id FROM chunk WHERE number = piece.chunk) "
        f"FROM piece WHERE {_EXTENT}",
        fields,
    ).fetchone()
    if copy is None:
        connection.execute(
            f"INSERT INTO piece ({', '.join(fields)}) VALUES ({', '.join(':' + name for name in fields)})",
            fields,
        )
        connection.execute(
            "INSERT INTO assembly (dataset, folder, name, version, size, gathered) "
            "VALUES (:dataset, :folder, :name, :version, :size, :length) "
            "ON CONFLICT DO UPDATE SET gathered = gathered + excluded.gathered",
            fields,
        )
        return True
    old_chunk, old_entry, old_chunk_id = copy
    if (old_chunk_id, old_entry) > (chunk_id, extent.entry):
        effects.dead[extent.chunk].append(extent.entry)
        return False
    effects.dead[old_chunk].append(old_entry)
    connection.execute(
        "UPDATE piece SET chunk = :chunk, entry = :entry, offset = :offset, digest_a = :digest_a, "
        f"digest_b = :digest_b, mode = :mode, mtime_ns = :mtime_ns WHERE {_EXTENT}",
        fields,
    )
    return extent.place == 0  # the first extent has the file's mode and time


def _assemble(connection: sqlite3.Connection, extent: ExtentRow, effects: Effects[int]) -> None:
    """Make the file of `extent` live if its extents cover it."""
    fields = extent._asdict()
    row = connection.execute(f"SELECT gathered FROM assembly WHERE {_FILE}", fields).fetchone()
    if row is None or row[0] < extent.size:  # None: a newer file in the same chunk came first
        return
    chosen = tiling(connection.execute(f"SELECT place, length FROM piece WHERE {_FILE}", fields), extent.size)
    if chosen is None:
        return
    _replace_live(connection, extent, effects)
    connection.execute(f"UPDATE piece SET in_use = 0 WHERE {_FILE}", fields)
    connection.executemany(
        f"UPDATE piece SET in_use = 1 WHERE {_EXTENT}",
        ({**fields, "place": place, "length": length} for place, length in chosen),
    )
    first = {**fields, "place": 0, "length": chosen[0][1]}
    connection.execute(
        "INSERT OR REPLACE INTO entry "
        "(dataset, folder, name, version, op, mode, mtime_ns, size, chunk, entry, offset, digest_a, digest_b, target) "
        f"SELECT dataset, folder, name, version, {int(Op.FILE)}, mode, mtime_ns, size, NULL, NULL, 0, 0, 0, NULL "
        f"FROM piece WHERE {_EXTENT}",
        first,
    )


def _replace_live(connection: sqlite3.Connection, extent: ExtentRow, effects: Effects[int]) -> None:
    """Count the file of `extent` instead of the former entry of its path."""
    live = _live_at(connection, extent)
    if live is None or live.op == Op.DELETE:
        effects.members[extent.folder] += 1
    if live is not None and live.op == Op.FILE:
        effects.files -= 1
        effects.total_bytes -= live.size
    effects.files += 1
    effects.total_bytes += extent.size
    if live is not None and live.chunk is not None and live.entry is not None:
        effects.dead[live.chunk].append(live.entry)
    connection.execute(f"DELETE FROM tombstone WHERE {_PATH}", extent._asdict())
    older = connection.execute(
        f"SELECT version, size FROM assembly WHERE {_PATH} AND (version, size) < (:version, :size)",
        extent._asdict(),
    ).fetchall()
    for file in older:
        _drop_file(connection, (*extent[:3], *file), effects)


def _live_at(connection: sqlite3.Connection, extent: ExtentRow) -> _Live | None:
    row = connection.execute(
        f"SELECT version, op, size, chunk, entry FROM entry WHERE {_PATH} UNION ALL "
        f"SELECT version, {int(Op.DELETE)}, 0, chunk, entry FROM tombstone WHERE {_PATH}",
        extent._asdict(),
    ).fetchone()
    return None if row is None else _Live(*row)


def _comes_after(live: _Live, extent: ExtentRow) -> bool:
    if live.version != extent.version:
        return live.version > extent.version
    return live.chunk is not None or live.size > extent.size


def _drop_file(connection: sqlite3.Connection, file: Sequence[int | bytes], effects: Effects[int]) -> None:
    """Drop a file, given by the first five fields of `ExtentRow`, with its extents."""
    key = dict(zip(ExtentRow._fields, file, strict=False))
    effects.kill(*zip(*connection.execute(f"SELECT chunk, entry FROM piece WHERE {_FILE}", key), strict=True))
    connection.execute(f"DELETE FROM piece WHERE {_FILE}", key)
    connection.execute(f"DELETE FROM assembly WHERE {_FILE}", key)


# -- whole entries ---------------------------------------------------------------------------------------

_STAGED_COLUMNS = "folder, name, entry, version, op, mode, mtime_ns, size, offset, digest_a, digest_b, target"
_STAGED_WIDTH = _STAGED_COLUMNS.count(",") + 1
_ROWS_PER_INSERT_MAX = 1024
"""Rows of one INSERT; smaller ones have a power of two, so that few different statements are compiled."""
assert _ROWS_PER_INSERT_MAX * _STAGED_WIDTH <= 32_766  # SQLite's limit of parameters

_SPANNING = 0  # instead of a chunk number (from 1 on): the file spans chunks


class _Entries:
    """The entries of the chunk as SQLite stores them: signed numbers, split paths. Arrays have shape (entries,)."""

    def __init__(self, chunk: int, chunk_id: bytes, header: ChunkHeader) -> None:
        self.chunk, self.chunk_id, self.header = chunk, chunk_id, header
        parts = [path.rpartition(b"/") for path in header.paths]
        self.folders, self.names = [folder for folder, _, _ in parts], [name for _, _, name in parts]
        self.is_file = is_file = header.ops == Op.FILE
        self.sizes, self.lengths = header.sizes.astype(np.int64), header.lengths.astype(np.int64)
        self.offsets = np.where(is_file, header.offsets, 0).astype(np.int64)
        digests = np.where(is_file, header.digests, np.void(NO_DIGEST))
        self.digest_halves = digests.view(np.int64).reshape(-1, 2)
        """The digests of files as two numbers each, shape (entries, 2)."""
        self.versions = header.versions.astype(np.int64)


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
    entries = _Entries(chunk, chunk_id, header)
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
        whole = whole[~np.isin(whole, losing)]
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
    _insert(connection, f"staged ({_STAGED_COLUMNS})", _STAGED_WIDTH, values)


def _insert(connection: sqlite3.Connection, table: str, width: int, values: Sequence[object]) -> None:
    """Insert rows of `width` values each into a table that belongs to the connection."""
    rows, row_of_parameters = len(values) // width, f"({', '.join('?' * width)})"
    start, count = 0, _ROWS_PER_INSERT_MAX
    while start < rows:
        while count > rows - start:
            count //= 2
        connection.execute(
            f"INSERT INTO {table} VALUES {', '.join([row_of_parameters] * count)}",
            values[start * width : (start + count) * width],
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


def _extents(dataset: int, entries: _Entries, rows: Numbers) -> Iterator[ExtentRow]:
    header = entries.header
    file_columns = (entries.versions, entries.sizes, header.places, entries.lengths)
    columns = (entries.offsets, *entries.digest_halves.T, header.modes, header.mtimes_ns)
    for row in rows.tolist():
        path = (dataset, entries.folders[row], entries.names[row])
        place = (int(column[row]) for column in file_columns)
        rest = (int(column[row]) for column in columns)
        yield ExtentRow._make((*path, *place, entries.chunk, row, *rest))


def write_effects(connection: sqlite3.Connection, dataset: int, effects: Effects[int], now_ns: int) -> None:
    """Write the effects once, at the end of the transaction, before the generation rises."""
    for chunk, entries in effects.dead.items():
        (deleted,) = connection.execute("SELECT deleted FROM chunk WHERE number = ?", (chunk,)).fetchone()
        bits = bytearray(deleted)
        for entry in entries:
            bits[entry // 8] |= 1 << entry % 8
        connection.execute(
            "UPDATE chunk SET deleted = ?, deleted_entries = deleted_entries + ?, updated_ns = ? WHERE number = ?",
            (bytes(bits), len(entries), now_ns, chunk),
        )
    folders = change_folders(effects.members, partial(_change_folders, connection, dataset))
    connection.execute(
        "UPDATE dataset SET files = files + ?, total_bytes = total_bytes + ? WHERE number = ?",
        (effects.files, effects.total_bytes, dataset),
    )
    live = effects.members.total()
    is_known = connection.execute(
        "UPDATE counted SET generation = generation + 1, entries = entries + ?, folders = folders + ? "
        "WHERE dataset = ? AND generation = (SELECT generation FROM dataset WHERE number = dataset)",
        (live, folders, dataset),
    ).rowcount
    if not is_known:  # the first chunk
        connection.execute(
            "INSERT OR REPLACE INTO counted SELECT number, generation + 1, max(files, ?), "
            "(SELECT count(*) FROM folder WHERE dataset = number) FROM dataset WHERE number = ?",
            (live, dataset),
        )


_NUL = b"\0"


def _change_folders(
    connection: sqlite3.Connection, dataset: int, changes: Sequence[FolderChange]
) -> list[tuple[bytes, int]]:
    """As `change_folders` asks for. A chunk may need some hundred thousand folders."""
    _insert(connection, "changed (parent, name, change)", 3, list(chain.from_iterable(changes)))
    connection.execute(
        "INSERT INTO folder (dataset, parent, name, members) SELECT ?, parent, name, change FROM changed WHERE true "
        "ON CONFLICT DO UPDATE SET members = members + excluded.members",
        (dataset,),
    )
    parents, more = connection.execute(
        "SELECT CAST(group_concat(parent, char(0)) AS BLOB), group_concat(more) FROM ("
        "SELECT c.parent, sum((f.members = c.change) - (f.members = 0)) AS more "
        "FROM changed AS c CROSS JOIN folder AS f "
        "ON f.dataset = ? AND f.parent = c.parent AND f.name = c.name GROUP BY c.parent HAVING more <> 0)",
        (dataset,),
    ).fetchone()
    if any(change < 0 for _, _, change in changes):
        connection.execute(
            "DELETE FROM folder WHERE dataset = ? AND members = 0 AND (parent, name) IN "
            "(SELECT parent, name FROM changed)",
            (dataset,),
        )
    connection.execute("DELETE FROM changed")
    return [] if more is None else list(zip(parents.split(_NUL), parse_numbers(more).tolist(), strict=True))
