"""Copies of datasets in SQLite, which a rebuild fills and then puts in place, in the caller's transaction.

Copies are rows of the table `dataset` whose names have a slash, so users cannot see them: `NAME/copy` is being filled,
`NAME/old.NUMBER` was replaced and is being removed.
"""

import sqlite3

from dieselfs.errors import NotFound
from dieselfs_server.metadata.sqlite.schema import DATASET_TABLES

IS_VISIBLE = "instr(name, '/') = 0"
"""Whether a row of `dataset` is one that users see."""


def begin_copy(connection: sqlite3.Connection, number: int, copy_id: bytes) -> None:
    """Start an empty copy of dataset `number`, which continues its generation. An earlier copy becomes an old one."""
    connection.execute(
        "UPDATE dataset SET name = (SELECT name FROM dataset WHERE number = ?1) || '/old.' || number "
        "WHERE name = (SELECT name FROM dataset WHERE number = ?1) || '/copy'",
        (number,),
    )
    connection.execute(
        "INSERT INTO dataset (name, dataset_id, generation, updated_ns) "
        "SELECT name || '/copy', ?, generation, updated_ns FROM dataset WHERE number = ?",
        (copy_id, number),
    )


def copy_of(connection: sqlite3.Connection, number: int) -> tuple[int, bytes] | None:
    """`(number, ID)` of the copy of dataset `number` that is being filled."""
    query = "SELECT number, dataset_id FROM dataset WHERE name = (SELECT name FROM dataset WHERE number = ?) || '/copy'"
    found: tuple[int, bytes] | None = connection.execute(query, (number,)).fetchone()
    return found


def put_in_place(connection: sqlite3.Connection, number: int, copy_id: bytes, now_ns: int) -> None:
    """Make the copy the dataset; it takes over the notes and the reserved versions. Raises NotFound."""
    copy = copy_of(connection, number)
    if copy is None or copy[1] != copy_id:
        raise NotFound("another rebuild of this dataset has begun since; its result will count")
    columns = "dataset_id, name, generation, updated_ns, last_version"
    query = f"SELECT {columns} FROM dataset WHERE number = ?"
    dataset_id, name, generation, updated_ns, last_version = connection.execute(query, (number,)).fetchone()
    connection.execute(
        "UPDATE dataset SET dataset_id = randomblob(16), name = name || '/old.' || number WHERE number = ?",
        (number,),
    )
    connection.execute(
        "UPDATE dataset SET dataset_id = ?, name = ?, generation = max(generation, ?) + 1, "
        "updated_ns = max(updated_ns + 1, ?, ?), last_version = max(last_version, ?) WHERE number = ?",
        (dataset_id, name, generation, updated_ns + 1, now_ns, last_version, copy[0]),
    )
    connection.execute("UPDATE note SET dataset = ? WHERE dataset = ?", (copy[0], number))


def end_copy(connection: sqlite3.Connection, number: int, copy_id: bytes) -> None:
    """Make a copy an old one; no error if it is not the present copy."""
    copy = copy_of(connection, number)
    if copy is not None and copy[1] == copy_id:
        connection.execute(
            "UPDATE dataset SET name = (SELECT name FROM dataset WHERE number = ?) || '/old.' || number "
            "WHERE number = ?",
            (number, copy[0]),
        )


def old_copies(connection: sqlite3.Connection, number: int) -> list[int]:
    """The numbers of replaced and abandoned copies of dataset `number`."""
    query = (
        "SELECT number FROM dataset WHERE substr(name, 1, (SELECT length(name) + 5 FROM dataset WHERE number = ?1)) "
        "= (SELECT name FROM dataset WHERE number = ?1) || '/old.'"
    )
    return [old for (old,) in connection.execute(query, (number,))]


def remove_rows(connection: sqlite3.Connection, number: int) -> None:
    """Remove all rows of dataset `number`."""
    for table in DATASET_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE dataset = ?", (number,))
    connection.execute("DELETE FROM dataset WHERE number = ?", (number,))
