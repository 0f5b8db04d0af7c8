"""The metadata store in one SQLite file, for any number of threads and processes on one machine.

Tables and threads: `connections.py`. States after a crash: `docs/internals/durability.md`.

A rebuild fills a copy of a dataset, and then puts it in place. Copies are rows of the table `dataset` whose names have
a slash, so users cannot see them: `NAME/copy` is being filled; what was replaced or dropped is being removed, and has
`/old.` in its name.
"""

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock
from typing import Any

from dieselfs.chunk.format import ChunkHeader, Op, Preamble
from dieselfs.chunk.ids import chunk_time_s, earliest_chunk_id
from dieselfs.errors import AlreadyExists, NotFound, Unavailable
from dieselfs.fields import DATASET_ID_BYTES
from dieselfs.limits import KIB
from dieselfs.names import split_path
from dieselfs.records import (
    ChunkRecord,
    DatasetRecord,
    DatasetUsage,
    EntryTable,
    Extent,
    FileRecord,
    NoteChange,
    PendingFile,
)
from dieselfs.rpc.records import OK, WARNING, CheckRecord
from dieselfs_server.metadata.interface import Sink
from dieselfs_server.metadata.rules import (
    EntryBlocks,
    check_dead,
    first_generation,
    joined,
    merge_listing,
    next_versions,
)
from dieselfs_server.metadata.sqlite.apply import apply_entries, write_effects
from dieselfs_server.metadata.sqlite.connections import MEMORY, Connections
from dieselfs_server.metadata.sqlite.schema import COMMON, DATASET_TABLES
from dieselfs_server.metadata.sqlite.table import read_entry_blocks

LARGE_HEADER_BYTES = 16 * KIB
"""Chunks with longer headers can take long to apply, half a second at most."""

_DATASET_COLUMNS = "dataset_id, name, generation, updated_ns, files, total_bytes, chunks"
_DIGEST = struct.Struct("<qq")


class SqliteMetadata:
    """A `MetadataStore`. `path` is a file on a local disk, created if missing, in an existing folder; or MEMORY.

    Raises Unavailable if it cannot be opened, Damaged if it is not a database, InvalidInput if the database belongs to
    another program or to a newer dieselfs.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._connections = Connections(os.fspath(path))
        # Held while a large chunk waits and is applied, so that a small one waits for one of them.
        self._large = Lock()

    @contextmanager
    def _reading(self, dataset_id: bytes) -> Iterator[tuple[sqlite3.Connection, int]]:
        """A transaction that reads, and the number of the dataset. Raises NotFound."""
        with self._connections.reading() as connection:
            yield connection, _dataset_number(connection, dataset_id)

    @contextmanager
    def _writing(
        self, dataset_id: bytes, is_durable: bool = False
    ) -> Iterator[tuple[sqlite3.Connection, int]]:
        """A transaction that writes, and the number of the dataset. Raises NotFound."""
        with self._connections.writing(is_durable) as connection:
            yield connection, _dataset_number(connection, dataset_id)

    def create_dataset(
        self,
        name: str,
        dataset_id: bytes,
        generation: int = 0,
        updated_ns: int = 0,
        notes: Sequence[NoteChange] = (),
    ) -> DatasetRecord:
        with self._connections.writing(is_durable=True) as connection:
            query = "SELECT name FROM dataset WHERE name = ? OR dataset_id = ?"
            if (taken := _value(connection, query, name, dataset_id)) is not None:
                raise AlreadyExists(f"dataset {taken!r} exists already")
            connection.execute(
                "INSERT INTO dataset (name, dataset_id, generation, updated_ns) VALUES (?, ?, ?, ?)",
                (name, dataset_id, generation, updated_ns),
            )
            _change_notes(connection, _dataset_number(connection, dataset_id), notes)
        return DatasetRecord(dataset_id, name, generation, updated_ns, files=0, total_bytes=0, chunks=0)

    def dataset(self, name: str) -> DatasetRecord:
        query = f"SELECT {_DATASET_COLUMNS} FROM dataset WHERE name = ?"
        with self._connections.reading() as connection:
            row = connection.execute(query, (name,)).fetchone()
        if row is None:
            raise NotFound(f"there is no dataset {name!r}")
        return DatasetRecord(*row)

    def datasets(self) -> list[DatasetRecord]:
        with self._connections.reading() as connection:
            query = f"SELECT {_DATASET_COLUMNS} FROM dataset WHERE {IS_VISIBLE} ORDER BY name"
            rows = connection.execute(query).fetchall()
        return [DatasetRecord(*row) for row in rows]

    def usage(self, names: Sequence[str]) -> list[DatasetUsage | None]:
        query = (
            "SELECT ifnull((SELECT bytes FROM stored WHERE dataset = number), 0), ifnull("
            "(SELECT max(entries, files + folders) FROM counted AS c "
            "WHERE c.dataset = number AND c.generation = dataset.generation), "
            "files + (SELECT count(*) FROM folder AS f WHERE f.dataset = number)), "
            f"{_DATASET_COLUMNS} FROM dataset WHERE name = ?"
        )
        with self._connections.reading() as connection:
            rows = [connection.execute(query, (name,)).fetchone() for name in names]
        return [None if row is None else DatasetUsage(DatasetRecord(*row[2:]), *row[:2]) for row in rows]

    def drop_dataset(self, dataset_id: bytes) -> None:
        with self._writing(dataset_id, is_durable=True) as (connection, number):
            copy = copy_of(connection, number)
            for each in (number, *([copy[0]] if copy else [])):
                make_old(connection, each)
        with suppress(Unavailable):  # the rows that stay go with those of the next one
            self._remove_old()

    def begin_rebuild(self, dataset_id: bytes) -> bytes:
        copy_id = os.urandom(DATASET_ID_BYTES)
        with self._writing(dataset_id) as (connection, number):
            begin_copy(connection, number, copy_id)
        self._remove_old()
        return copy_id

    def finish_rebuild(self, dataset_id: bytes, copy_id: bytes, now_ns: int) -> None:
        with self._writing(dataset_id, is_durable=True) as (connection, number):
            put_in_place(connection, number, copy_id, now_ns)
        self._remove_old()

    def cancel_rebuild(self, dataset_id: bytes, copy_id: bytes) -> None:
        with self._writing(dataset_id) as (connection, number):
            end_copy(connection, number, copy_id)
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove the rows of old copies and dropped datasets, some in a transaction, so that others write as well."""
        with self._connections.reading() as connection:
            left = old_numbers(connection)
        while left:
            with self._connections.writing() as connection:
                if not remove_rows(connection, left[-1]):
                    left.pop()

    def reserve_versions(self, dataset_id: bytes, count: int, now_ns: int) -> int:
        with self._writing(dataset_id) as (connection, number):
            last = _number(connection, "SELECT last_version FROM dataset WHERE number = ?", number)
            versions = next_versions(last, count, now_ns)
            connection.execute("UPDATE dataset SET last_version = ? WHERE number = ?", (versions[-1], number))
        return versions[0]

    def last_version(self, dataset_id: bytes) -> int:
        with self._reading(dataset_id) as (connection, number):
            return _number(connection, "SELECT last_version FROM dataset WHERE number = ?", number)

    def apply(
        self, dataset_id: bytes, preamble: Preamble, header: ChunkHeader, now_ns: int, is_again: bool = False
    ) -> int:
        # `is_again` makes no difference: the record of a chunk and its entries are in one transaction.
        is_large = preamble.header_length > LARGE_HEADER_BYTES
        with self._large if is_large else nullcontext(), self._writing(dataset_id) as (connection, number):
            copy = copy_of(connection, number)
            for each in (number, copy[0]) if copy else (number,):
                _apply(connection, each, preamble, header, now_ns)
            return _number(connection, "SELECT generation FROM dataset WHERE number = ?", number)

    def has_chunk(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        with self._reading(dataset_id) as (connection, number):
            return _chunk_number(connection, number, chunk_id) is not None

    def check_whole(self, dataset_id: bytes) -> None:
        with self._reading(dataset_id):  # one file: no part of it can be missing alone
            pass

    def forget_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        with self._writing(dataset_id) as (connection, number):
            chunk = _chunk_number(connection, number, chunk_id)
            if chunk is None:
                return
            alive = _number(connection, "SELECT entries - deleted_entries FROM chunk WHERE number = ?", chunk)
            check_dead(chunk_id, alive)
            connection.execute("DELETE FROM chunk WHERE number = ?", (chunk,))
            connection.execute("UPDATE dataset SET chunks = chunks - 1 WHERE number = ?", (number,))

    def chunks(self, dataset_id: bytes) -> list[ChunkRecord]:
        with self._reading(dataset_id) as (connection, number):
            return [record for _, record in _chunks(connection, number)]

    def newest_chunk_time_s(self, dataset_id: bytes, until_s: int) -> int:
        query = "SELECT max(chunk_id) FROM chunk WHERE dataset = ? AND chunk_id < ?"
        with self._reading(dataset_id) as (connection, number):
            newest = _value(connection, query, number, earliest_chunk_id(until_s + 1))
        return 0 if newest is None else chunk_time_s(newest)

    def notes(self, dataset_id: bytes, names: Sequence[str]) -> list[bytes | None]:
        with self._reading(dataset_id) as (connection, number):
            return [_note(connection, number, name) for name in names]

    def notes_below(self, dataset_id: bytes, folder: str) -> dict[str, bytes]:
        with self._reading(dataset_id) as (connection, number):
            rows = connection.execute(
                "SELECT name, value FROM note WHERE dataset = ? AND name >= ? AND substr(name, 1, ?) = ? "
                "ORDER BY name",
                (number, folder, len(folder), folder),
            )
            return dict(rows.fetchall())

    def change_notes(self, dataset_id: bytes, changes: Sequence[NoteChange]) -> bool:
        with self._writing(dataset_id) as (connection, number):
            return _change_notes(connection, number, changes)

    def common_note(self, name: str) -> bytes | None:
        with self._connections.reading() as connection:
            return _note(connection, COMMON, name)

    def change_common_note(self, change: NoteChange) -> bool:
        with self._connections.writing() as connection:
            return _change_notes(connection, COMMON, [change])

    def pending(self, dataset_id: bytes, path: bytes) -> PendingFile:
        with self._reading(dataset_id) as (connection, number):
            rows = connection.execute(
                "SELECT version, size, mtime_ns, place, length, digest_a, digest_b FROM piece "
                "WHERE (dataset, folder, name) = (?1, ?2, ?3) AND version > ("
                "  SELECT max(version) FROM (SELECT 0 AS version "
                "    UNION ALL SELECT version FROM entry WHERE (dataset, folder, name) = (?1, ?2, ?3) "
                "    UNION ALL SELECT version FROM tombstone WHERE (dataset, folder, name) = (?1, ?2, ?3))) "
                "ORDER BY version DESC, size DESC, place",
                (number, *split_path(path)),
            ).fetchall()
        if not rows:
            return PendingFile()
        version, size, mtime_ns = rows[0][:3]
        extents = {
            (place, length): _DIGEST.pack(*halves)
            for v, s, _, place, length, *halves in rows
            if (v, s) == (version, size)
        }
        return PendingFile(version, size, mtime_ns, extents)

    def lookup(self, dataset_id: bytes, path: bytes) -> FileRecord | None:
        with self._reading(dataset_id) as (connection, number):
            key = (number, *split_path(path))
            row = connection.execute(
                "SELECT op, mode, mtime_ns, size, version, ifnull(target, x''), offset, digest_a, digest_b, "
                "(SELECT chunk_id FROM chunk WHERE number = entry.chunk) "
                "FROM entry WHERE (dataset, folder, name) = (?, ?, ?)",
                key,
            ).fetchone()
            if row is None:
                return None
            op, mode, mtime_ns, size, version, target, offset, *halves, chunk_id = row
            extents: tuple[Extent, ...] = ()
            if op == Op.FILE and chunk_id is None:
                extents = _spanning_extents(connection, key)
            elif op == Op.FILE and size > 0:
                extents = (Extent(0, chunk_id, offset, size, _DIGEST.pack(*halves)),)
        return FileRecord(path, op, mode, mtime_ns, size, version, target, extents)

    def list_folder(self, dataset_id: bytes, folder: bytes, after: bytes, limit: int) -> Sequence[FileRecord]:
        prefix = folder + b"/" if folder else b""
        with self._reading(dataset_id) as (connection, number):
            key = (number, folder, after, limit)
            entries = connection.execute(
                "SELECT name, op, mode, mtime_ns, size, version, ifnull(target, x'') FROM entry "
                "WHERE dataset = ? AND folder = ? AND name > ? ORDER BY name LIMIT ?",
                key,
            ).fetchall()
            folders = connection.execute(
                "SELECT name FROM folder WHERE dataset = ? AND parent = ? AND name > ? ORDER BY name LIMIT ?",
                key,
            ).fetchall()
        records = [
            FileRecord(prefix + name, op, mode, mtime_ns, size, version, target, ())
            for name, op, mode, mtime_ns, size, version, target in entries
        ]
        return merge_listing(records, [prefix + name for (name,) in folders], limit)

    def read_entries(self, dataset_id: bytes, begin: Callable[[], Sink]) -> Sink:
        sink = begin()
        with self._reading(dataset_id) as (connection, number):
            query = f"SELECT {_DATASET_COLUMNS} FROM dataset WHERE number = ?"
            row = connection.execute(query, (number,)).fetchone()
            chunks = _chunks(connection, number)
            for block in read_entry_blocks(connection, number, DatasetRecord(*row), chunks):
                sink.add(block)
        return sink

    def entry_table(self, dataset_id: bytes) -> EntryTable:
        return joined(self.read_entries(dataset_id, EntryBlocks))

    def condition(self) -> list[CheckRecord]:
        path = self._connections.path
        if path == MEMORY:
            text = "SQLite in memory: it is lost when the server ends, and needs dlcmd rebuild"
            return [CheckRecord("metadata", WARNING, text, "set metadata = sqlite:///PATH, or redis://")]
        return [CheckRecord("metadata", OK, f"SQLite {path}, durable at each commit")]

    def lineage(self) -> int:
        return self._connections.lineage()

    def close(self) -> None:
        self._connections.close()


def _apply(
    connection: sqlite3.Connection, number: int, preamble: Preamble, header: ChunkHeader, now_ns: int
) -> None:
    """Apply a chunk to dataset `number`, unless it has been applied."""
    if _chunk_number(connection, number, preamble.chunk_id) is not None:
        return
    # The time of the generation, also where the clock has stepped back: purge compares when a chunk died with it.
    updated_ns = max(
        _number(connection, "SELECT updated_ns + 1 FROM dataset WHERE number = ?", number), now_ns
    )
    chunk = _insert_chunk(connection, number, preamble, len(header), updated_ns)
    effects = apply_entries(connection, number, chunk, preamble.chunk_id, header)
    write_effects(connection, number, effects, updated_ns)
    connection.execute(
        "UPDATE dataset SET generation = generation + 1, chunks = chunks + 1, updated_ns = ?, "
        "last_version = max(last_version, ?) WHERE number = ?",
        (updated_ns, int(header.versions.max(initial=0)), number),
    )


def _value(connection: sqlite3.Connection, query: str, *parameters: int | bytes | str) -> Any:
    """The only column of the first row; None without a row."""
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def _number(connection: sqlite3.Connection, query: str, parameter: int) -> int:
    return int(_value(connection, query, parameter))


def _dataset_number(connection: sqlite3.Connection, dataset_id: bytes) -> int:
    number: int | None = _value(connection, "SELECT number FROM dataset WHERE dataset_id = ?", dataset_id)
    if number is None:
        raise NotFound(f"there is no dataset {dataset_id.hex()}")
    return number


def _chunk_number(connection: sqlite3.Connection, dataset: int, chunk_id: bytes) -> int | None:
    query = "SELECT number FROM chunk WHERE (dataset, chunk_id) = (?, ?)"
    number: int | None = _value(connection, query, dataset, chunk_id)
    return number


def _note(connection: sqlite3.Connection, dataset: int, name: str) -> bytes | None:
    value: bytes | None = _value(
        connection, "SELECT value FROM note WHERE (dataset, name) = (?, ?)", dataset, name
    )
    return value


def _change_notes(connection: sqlite3.Connection, dataset: int, changes: Sequence[NoteChange]) -> bool:
    if any(_note(connection, dataset, change.name) != change.expected for change in changes):
        return False
    for name, value in ((change.name, change.value) for change in changes):
        if value is None:
            connection.execute("DELETE FROM note WHERE (dataset, name) = (?, ?)", (dataset, name))
        else:
            connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?)", (dataset, name, value))
    return True


def _insert_chunk(
    connection: sqlite3.Connection, dataset: int, preamble: Preamble, entries: int, now_ns: int
) -> int:
    (number,) = connection.execute(
        "INSERT INTO chunk (dataset, chunk_id, updated_ns, header_length, payload_length, payload_digest, entries, "
        "deleted) VALUES (?, ?, ?, ?, ?, ?, ?, zeroblob(?)) RETURNING number",
        (
            dataset,
            preamble.chunk_id,
            now_ns,
            preamble.header_length,
            preamble.payload_length,
            preamble.payload_digest,
            entries,
            (entries + 7) // 8,
        ),
    ).fetchone()
    return int(number)


def _chunks(connection: sqlite3.Connection, dataset: int) -> list[tuple[int, ChunkRecord]]:
    """All chunks of a dataset with their numbers, ordered by ID."""
    rows = connection.execute(
        "SELECT number, chunk_id, updated_ns, header_length, payload_length, payload_digest, entries, "
        "deleted_entries, deleted FROM chunk WHERE dataset = ? ORDER BY chunk_id",
        (dataset,),
    )
    return [
        (
            number,
            ChunkRecord(chunk_id, ns, header, payload, payload_digest, entries, dead, deleted),
        )
        for number, chunk_id, ns, header, payload, payload_digest, entries, dead, deleted in rows
    ]


def _spanning_extents(connection: sqlite3.Connection, key: tuple[int, bytes, bytes]) -> tuple[Extent, ...]:
    rows = connection.execute(
        "SELECT place, (SELECT chunk_id FROM chunk WHERE number = piece.chunk), offset, length, digest_a, digest_b "
        "FROM piece WHERE (dataset, folder, name) = (?, ?, ?) AND in_use ORDER BY place",
        key,
    )
    return tuple(
        Extent(place, chunk_id, offset, length, _DIGEST.pack(*halves))
        for place, chunk_id, offset, length, *halves in rows
    )


IS_VISIBLE = "instr(name, '/') = 0"
"""Whether a row of `dataset` is one that users see."""


def begin_copy(connection: sqlite3.Connection, number: int, copy_id: bytes) -> None:
    """Start an empty copy of dataset `number`, which continues its generation. An earlier copy becomes an old one."""
    if (earlier := copy_of(connection, number)) is not None:
        make_old(connection, earlier[0])
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
    make_old(connection, number)
    connection.execute(
        "UPDATE dataset SET dataset_id = ?, name = ?, generation = max(generation, ?) + 1, "
        "updated_ns = max(updated_ns + 1, ?, ?), last_version = max(last_version, ?) WHERE number = ?",
        (
            *(dataset_id, name, max(generation, first_generation(now_ns))),
            *(updated_ns + 1, now_ns, last_version, copy[0]),
        ),
    )
    connection.execute(
        "UPDATE counted SET generation = (SELECT generation FROM dataset WHERE number = dataset) WHERE dataset = ?",
        (copy[0],),
    )
    connection.execute("UPDATE note SET dataset = ? WHERE dataset = ?", (copy[0], number))


def end_copy(connection: sqlite3.Connection, number: int, copy_id: bytes) -> None:
    """Make a copy an old one; no error if it is not the present copy."""
    copy = copy_of(connection, number)
    if copy is not None and copy[1] == copy_id:
        make_old(connection, copy[0])


def make_old(connection: sqlite3.Connection, number: int) -> None:
    """Make a dataset, or its copy, one that is being removed: its name and its ID are free."""
    connection.execute(
        "UPDATE dataset SET dataset_id = randomblob(16), name = name || '/old.' || number WHERE number = ?",
        (number,),
    )


def old_numbers(connection: sqlite3.Connection) -> list[int]:
    """The numbers of dropped datasets, and of replaced and abandoned copies."""
    query = "SELECT number FROM dataset WHERE instr(name, '/old.')"
    return [old for (old,) in connection.execute(query)]


ROWS_AT_ONCE = 20_000
"""Rows that a transaction removes of a table."""


def remove_rows(connection: sqlite3.Connection, number: int) -> bool:
    """Remove some rows of dataset `number`; whether any are left."""
    for table, key in DATASET_TABLES.items():
        some = f"SELECT {key} FROM {table} WHERE dataset = ? LIMIT {ROWS_AT_ONCE}"
        removed = connection.execute(f"DELETE FROM {table} WHERE ({key}) IN ({some})", (number,)).rowcount
        if removed == ROWS_AT_ONCE:
            return True
    connection.execute("DELETE FROM dataset WHERE number = ?", (number,))
    return False
