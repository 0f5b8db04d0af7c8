"""Files that span chunks, in SQLite: stores extents, and makes a file live once they cover it.

All functions run in the caller's transaction. A chunk has few extents of this kind, so each is handled on its own. A
file that spans chunks loses to an entry of the same version, and of two sizes the larger one counts.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dieselfs.chunk.format import Op
from dieselfs_server.metadata.rules import Effects, tiling

_PATH = "(dataset, folder, name) = (:dataset, :folder, :name)"
_FILE = "(dataset, folder, name, version, size) = (:dataset, :folder, :name, :version, :size)"
_EXTENT = (
    "(dataset, folder, name, version, size, place, length)"
    " = (:dataset, :folder, :name, :version, :size, :place, :length)"
)


class StoredExtent(NamedTuple):
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
    connection: sqlite3.Connection, extents: Iterable[StoredExtent], chunk_id: bytes, effects: Effects[int]
) -> None:
    """Store `extents`, all of chunk `chunk_id`, and make the files live that they complete."""
    grown = {extent[:5]: extent for extent in extents if _gather(connection, extent, chunk_id, effects)}
    for extent in grown.values():
        _assemble(connection, extent, effects)


def _gather(
    connection: sqlite3.Connection, extent: StoredExtent, chunk_id: bytes, effects: Effects[int]
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


def _assemble(connection: sqlite3.Connection, extent: StoredExtent, effects: Effects[int]) -> None:
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


def _replace_live(connection: sqlite3.Connection, extent: StoredExtent, effects: Effects[int]) -> None:
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


def _live_at(connection: sqlite3.Connection, extent: StoredExtent) -> _Live | None:
    row = connection.execute(
        f"SELECT version, op, size, chunk, entry FROM entry WHERE {_PATH} UNION ALL "
        f"SELECT version, {int(Op.DELETE)}, 0, chunk, entry FROM tombstone WHERE {_PATH}",
        extent._asdict(),
    ).fetchone()
    return None if row is None else _Live(*row)


def _comes_after(live: _Live, extent: StoredExtent) -> bool:
    if live.version != extent.version:
        return live.version > extent.version
    return live.chunk is not None or live.size > extent.size


def _drop_file(connection: sqlite3.Connection, file: Sequence[int | bytes], effects: Effects[int]) -> None:
    """Drop a file, given by the first five fields of `StoredExtent`, with its extents."""
    key = dict(zip(StoredExtent._fields, file, strict=False))
    effects.kill(*zip(*connection.execute(f"SELECT chunk, entry FROM piece WHERE {_FILE}", key), strict=True))
    connection.execute(f"DELETE FROM piece WHERE {_FILE}", key)
    connection.execute(f"DELETE FROM assembly WHERE {_FILE}", key)
