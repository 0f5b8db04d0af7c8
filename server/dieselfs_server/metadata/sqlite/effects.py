"""Writes the effects of applying a chunk to the SQLite tables, once, at the end of the transaction."""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial

from dieselfs_server.metadata.effects import Effects, change_folders


def write_effects(connection: sqlite3.Connection, dataset: int, effects: Effects[int], now_ns: int) -> None:
    _mark_deleted(connection, effects.dead, now_ns)
    change_folders(effects.members, partial(_change_folder, connection, dataset))
    connection.execute(
        "UPDATE dataset SET files = files + ?, total_bytes = total_bytes + ? WHERE number = ?",
        (effects.files, effects.total_bytes, dataset),
    )


def _mark_deleted(connection: sqlite3.Connection, dead: Mapping[int, Sequence[int]], now_ns: int) -> None:
    for chunk, entries in dead.items():
        (deleted,) = connection.execute("SELECT deleted FROM chunk WHERE number = ?", (chunk,)).fetchone()
        bits = bytearray(deleted)
        for entry in entries:
            bits[entry // 8] |= 1 << entry % 8
        connection.execute(
            "UPDATE chunk SET deleted = ?, deleted_entries = deleted_entries + ?, updated_ns = ? WHERE number = ?",
            (bytes(bits), len(entries), now_ns, chunk),
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
