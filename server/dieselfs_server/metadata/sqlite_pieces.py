"""Files that span chunks, in SQLite: gathers pieces, and makes a file live once they cover it.

All inside the caller's transaction. Pieces come a few to a chunk, so here each is handled by itself. A file in pieces
comes after a whole entry of the same version, and the larger size after the smaller.
"""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from dieselfs.chunk.format import Op
from dieselfs_server.metadata.effects import Effects
from dieselfs_server.metadata.tiling import tiling

_PATH = "(dataset, folder, name) = (:dataset, :folder, :name)"
_FILE = "(dataset, folder, name, version, size) = (:dataset, :folder, :name, :version, :size)"
_PIECE = (
    "(dataset, folder, name, version, size, place, length)"
    " = (:dataset, :folder, :name, :version, :size, :place, :length)"
)


class Piece(NamedTuple):
    """A row of the table `piece`, without `in_use`; the first five name the file, a row of `assembly`."""

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
    checksum: int
    mode: int
    mtime_ns: int


class _Live(NamedTuple):
    """What stands at a path, or what its tombstone says. `chunk` is None for a file in pieces."""

    version: int
    op: int
    size: int
    chunk: int | None
    entry: int | None


def drop_overtaken(connection: sqlite3.Connection, dataset: int, effects: Effects[int]) -> None:
    """Drop the files in pieces that the entries in `staged`, which all count, are newer than (or as new as)."""
    if connection.execute("SELECT 1 FROM assembly WHERE dataset = ? LIMIT 1", (dataset,)).fetchone() is None:
        return
    overtaken = connection.execute(
        "SELECT a.folder, a.name, a.version, a.size FROM staged AS s CROSS JOIN assembly AS a "
        "ON a.dataset = ? AND a.folder = s.folder AND a.name = s.name AND a.version <= s.version",
        (dataset,),
    ).fetchall()
    for folder, name, version, size in overtaken:
        _drop_file(connection, dataset, folder, name, version, size, effects)


def apply_pieces(
    connection: sqlite3.Connection, pieces: Iterable[Piece], chunk_id: bytes, effects: Effects[int]
) -> None:
    """Gather `pieces`, which are of chunk `chunk_id`, and make the files live that are complete with them."""
    grown = {piece[:5]: piece for piece in pieces if _gather(connection, piece, chunk_id, effects)}
    for piece in grown.values():
        _assemble(connection, piece, effects)


def _gather(connection: sqlite3.Connection, piece: Piece, chunk_id: bytes, effects: Effects[int]) -> bool:
    """Keep the piece unless it is out of date; returns whether its file has grown by it."""
    fields = piece._asdict()
    live = _live_at(connection, piece)
    if live is not None and _comes_after(live, piece):
        effects.dead[piece.chunk].append(piece.entry)
        return False
    copy = connection.execute(
        "SELECT chunk, entry, (SELECT chunk_id FROM chunk WHERE number = piece.chunk) "
        f"FROM piece WHERE {_PIECE}",
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
    if (old_chunk_id, old_entry) > (chunk_id, piece.entry):
        effects.dead[piece.chunk].append(piece.entry)
        return False
    effects.dead[old_chunk].append(old_entry)
    connection.execute(
        "UPDATE piece SET chunk = :chunk, entry = :entry, offset = :offset, checksum = :checksum, mode = :mode, "
        f"mtime_ns = :mtime_ns WHERE {_PIECE}",
        fields,
    )
    return piece.place == 0  # the first piece lends the file its mode and time


def _assemble(connection: sqlite3.Connection, piece: Piece, effects: Effects[int]) -> None:
    """Make the file of `piece` live if its pieces cover it."""
    fields = piece._asdict()
    row = connection.execute(f"SELECT gathered FROM assembly WHERE {_FILE}", fields).fetchone()
    if row is None or row[0] < piece.size:  # None: a newer file in the same chunk came first
        return
    chosen = tiling(connection.execute(f"SELECT place, length FROM piece WHERE {_FILE}", fields), piece.size)
    if chosen is None:
        return
    _replace_live(connection, piece, effects)
    connection.execute(f"UPDATE piece SET in_use = 0 WHERE {_FILE}", fields)
    connection.executemany(
        f"UPDATE piece SET in_use = 1 WHERE {_PIECE}",
        ({**fields, "place": place, "length": length} for place, length in chosen),
    )
    first = {**fields, "place": 0, "length": chosen[0][1]}
    connection.execute(
        "INSERT OR REPLACE INTO entry "
        "(dataset, folder, name, version, op, mode, mtime_ns, size, chunk, entry, offset, checksum, target) "
        f"SELECT dataset, folder, name, version, {int(Op.FILE)}, mode, mtime_ns, size, NULL, NULL, 0, 0, NULL "
        f"FROM piece WHERE {_PIECE}",
        first,
    )


def _replace_live(connection: sqlite3.Connection, piece: Piece, effects: Effects[int]) -> None:
    """Count the file of `piece` instead of what stood at its path."""
    live = _live_at(connection, piece)
    if live is None or live.op == Op.DELETE:
        effects.members[piece.folder] += 1
    if live is not None and live.op == Op.FILE:
        effects.files -= 1
        effects.total_bytes -= live.size
    effects.files += 1
    effects.total_bytes += piece.size
    if live is not None and live.chunk is not None and live.entry is not None:
        effects.dead[live.chunk].append(live.entry)
    connection.execute(f"DELETE FROM tombstone WHERE {_PATH}", piece._asdict())
    older = connection.execute(
        f"SELECT version, size FROM assembly WHERE {_PATH} AND (version, size) < (:version, :size)",
        piece._asdict(),
    ).fetchall()
    for version, size in older:
        _drop_file(connection, piece.dataset, piece.folder, piece.name, version, size, effects)


def _live_at(connection: sqlite3.Connection, piece: Piece) -> _Live | None:
    row = connection.execute(
        f"SELECT version, op, size, chunk, entry FROM entry WHERE {_PATH} UNION ALL "
        f"SELECT version, {int(Op.DELETE)}, 0, chunk, entry FROM tombstone WHERE {_PATH}",
        piece._asdict(),
    ).fetchone()
    return None if row is None else _Live(*row)


def _comes_after(live: _Live, piece: Piece) -> bool:
    if live.version != piece.version:
        return live.version > piece.version
    return live.chunk is not None or live.size > piece.size


def _drop_file(
    connection: sqlite3.Connection,
    dataset: int,
    folder: bytes,
    name: bytes,
    version: int,
    size: int,
    effects: Effects[int],
) -> None:
    key = {"dataset": dataset, "folder": folder, "name": name, "version": version, "size": size}
    effects.kill(*zip(*connection.execute(f"SELECT chunk, entry FROM piece WHERE {_FILE}", key), strict=True))
    connection.execute(f"DELETE FROM piece WHERE {_FILE}", key)
    connection.execute(f"DELETE FROM assembly WHERE {_FILE}", key)
