"""Connections to one SQLite database: one writer under a lock, and one reader for each thread that reads; its tables.

A reader sees the database as of the begin of its transaction and never waits for the writer (write-ahead log). All
threads share the single connection of a database in memory. Every error of SQLite becomes a DieselfsError.

`docs/reference/metadata-keys.md` explains how the tables work together. The digest of a file's bytes is stored as two
numbers, its halves, because `group_concat` joins numbers.
"""

import errno
import logging
import math
import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from dieselfs.chunk.format import PREAMBLE_BYTES
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, StorageFull, Unavailable

APPLICATION_ID = 0x44534C4D  # "DSLM"; `file` shows it; distinguishes our databases from others
SCHEMA_VERSION = 3

TABLES = (
    """
    -- One row per dataset. Each transaction that changes entries also updates the totals.
    CREATE TABLE dataset (
        number        INTEGER PRIMARY KEY AUTOINCREMENT,  -- identifies the dataset in other tables; never reused
        dataset_id    BLOB NOT NULL UNIQUE,               -- 16 bytes
        name          TEXT NOT NULL UNIQUE,               -- with a slash: a copy that a rebuild makes (store.py)
        generation    INTEGER NOT NULL DEFAULT 0,         -- chunks applied for the first time, ever
        updated_ns    INTEGER NOT NULL DEFAULT 0,         -- when the generation last rose, since 1970; 0: never
        files         INTEGER NOT NULL DEFAULT 0,         -- live entries that are files
        total_bytes   INTEGER NOT NULL DEFAULT 0,         -- their sizes together
        chunks        INTEGER NOT NULL DEFAULT 0,         -- rows in `chunk`
        last_version  INTEGER NOT NULL DEFAULT 0          -- largest version reserved or applied
    ) STRICT
    """,
    """
    -- One row per applied chunk.
    CREATE TABLE chunk (
        number            INTEGER PRIMARY KEY AUTOINCREMENT,  -- identifies the chunk in the tables below
        dataset           INTEGER NOT NULL,
        chunk_id          BLOB NOT NULL,                      -- 16 bytes
        updated_ns        INTEGER NOT NULL,                   -- when it was applied, or `deleted` last changed
        header_length     INTEGER NOT NULL,                   -- bytes
        payload_length    INTEGER NOT NULL,                   -- bytes
        payload_digest    BLOB NOT NULL,                      -- 32 bytes
        entries           INTEGER NOT NULL,
        deleted_entries   INTEGER NOT NULL DEFAULT 0,         -- bits set in `deleted`
        deleted           BLOB NOT NULL,                      -- bit i % 8 of byte i / 8: entry i is dead
        UNIQUE (dataset, chunk_id)
    ) STRICT
    """,
    """
    -- One row per live path: a folder's entries are one range. The root is folder '' and name ''.
    CREATE TABLE entry (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        op        INTEGER NOT NULL,   -- chunk.format.Op, never DELETE
        mode      INTEGER NOT NULL,
        mtime_ns  INTEGER NOT NULL,
        size      INTEGER NOT NULL,   -- bytes; 0 unless it is a file
        chunk     INTEGER,            -- chunk.number; NULL: a file that spans chunks, see `piece`
        entry     INTEGER,            -- which entry of that chunk; NULL with `chunk`
        offset    INTEGER NOT NULL,   -- of a file's bytes in the payload; else 0
        digest_a  INTEGER NOT NULL,   -- of a file's bytes, the first 8 bytes as a signed little-endian number; else 0
        digest_b  INTEGER NOT NULL,   -- the last 8 bytes
        target    BLOB,               -- of a symbolic link; else NULL
        PRIMARY KEY (dataset, folder, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per path whose largest version is a delete. A path is in `entry` or here, never in both.
    CREATE TABLE tombstone (
        dataset  INTEGER NOT NULL,
        folder   BLOB NOT NULL,
        name     BLOB NOT NULL,
        version  INTEGER NOT NULL,
        chunk    INTEGER NOT NULL,
        entry    INTEGER NOT NULL,
        PRIMARY KEY (dataset, folder, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- Extents of files that span chunks, also of incomplete files, if they belong to the path's row in `entry` or are
    -- newer than its row in `entry` or `tombstone`. Of copies of an extent, the one in the chunk with the largest ID.
    CREATE TABLE piece (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        size      INTEGER NOT NULL,   -- of the whole file
        place     INTEGER NOT NULL,   -- of the extent in the file
        length    INTEGER NOT NULL,
        chunk     INTEGER NOT NULL,
        entry     INTEGER NOT NULL,
        offset    INTEGER NOT NULL,
        digest_a  INTEGER NOT NULL,
        digest_b  INTEGER NOT NULL,
        mode      INTEGER NOT NULL,
        mtime_ns  INTEGER NOT NULL,
        in_use    INTEGER NOT NULL DEFAULT 0,  -- 1: the live file is read from this extent
        PRIMARY KEY (dataset, folder, name, version, size, place, length)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per file that spans chunks: its extents can cover it only when `gathered` has reached `size`.
    CREATE TABLE assembly (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        size      INTEGER NOT NULL,
        gathered  INTEGER NOT NULL,   -- sum of the lengths of its rows in `piece`
        PRIMARY KEY (dataset, folder, name, version, size)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per note: a small value that no chunk has, such as a lease.
    CREATE TABLE note (
        dataset  INTEGER NOT NULL,
        name     TEXT NOT NULL,
        value    BLOB NOT NULL,
        PRIMARY KEY (dataset, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per non-empty folder, with or without an entry of its own; none for the root.
    CREATE TABLE folder (
        dataset  INTEGER NOT NULL,
        parent   BLOB NOT NULL,
        name     BLOB NOT NULL,
        members  INTEGER NOT NULL,    -- live entries and rows of this table directly in it; never 0
        PRIMARY KEY (dataset, parent, name)
    ) STRICT, WITHOUT ROWID
    """,
)

_BYTES = f"{PREAMBLE_BYTES} + {{row}}header_length + {{row}}payload_length"

STORED_TABLE = (
    """
    -- One row per dataset with chunks: the bytes of all its chunks, which the triggers count.
    CREATE TABLE stored (
        dataset  INTEGER PRIMARY KEY,
        bytes    INTEGER NOT NULL
    ) STRICT
    """,
    f"INSERT INTO stored SELECT dataset, sum({_BYTES.format(row='')}) FROM chunk GROUP BY dataset",
    f"""
    CREATE TRIGGER chunk_added AFTER INSERT ON chunk BEGIN
        INSERT INTO stored VALUES (new.dataset, {_BYTES.format(row="new.")})
        ON CONFLICT (dataset) DO UPDATE SET bytes = bytes + excluded.bytes;
    END
    """,
    f"""
    CREATE TRIGGER chunk_removed AFTER DELETE ON chunk BEGIN
        UPDATE stored SET bytes = bytes - ({_BYTES.format(row="old.")}) WHERE dataset = old.dataset;
    END
    """,
)
"""Made in databases of before too. Triggers, so that an older dieselfs that writes the database counts as well."""

COUNTED_TABLE = """
-- One row per dataset with chunks; out of date if its generation is not that of the dataset.
CREATE TABLE counted (
    dataset     INTEGER PRIMARY KEY,
    generation  INTEGER NOT NULL,
    entries     INTEGER NOT NULL,   -- rows in `entry`
    folders     INTEGER NOT NULL    -- rows in `folder`
) STRICT
"""

COMMON = 0
"""In place of the number of a dataset: of notes that belong to none."""

DATASET_TABLES = {
    "entry": "dataset, folder, name",
    "tombstone": "dataset, folder, name",
    "piece": "dataset, folder, name, version, size, place, length",
    "assembly": "dataset, folder, name, version, size",
    "folder": "dataset, parent, name",
    "chunk": "number",
    "note": "dataset, name",
    "stored": "dataset",
    "counted": "dataset",
}
"""Tables with a column `dataset`, and their primary keys."""

STAGED = """
-- The entries of the chunk that is being applied; belongs to the connection, empty between transactions.
CREATE TEMPORARY TABLE staged (
    folder    BLOB NOT NULL,
    name      BLOB NOT NULL,
    entry     INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    op        INTEGER NOT NULL,
    mode      INTEGER NOT NULL,
    mtime_ns  INTEGER NOT NULL,
    size      INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    digest_a  INTEGER NOT NULL,
    digest_b  INTEGER NOT NULL,
    target    BLOB,
    PRIMARY KEY (folder, name)
) WITHOUT ROWID
"""


CHANGED = """
-- The folders of one depth whose members change; as `staged`.
CREATE TEMPORARY TABLE changed (
    parent    BLOB NOT NULL,
    name      BLOB NOT NULL,
    change    INTEGER NOT NULL,   -- of their number, never 0
    PRIMARY KEY (parent, name)
) WITHOUT ROWID
"""

MEMORY = ":memory:"

BUSY_TIMEOUT_S = 30.0
"""Timeout of a transaction that waits for another process."""
BUSY_PAUSE_S = 0.01
CACHE_KIB = 64 * 1024
LOG_PAGES = 4096
"""At this many pages (4 KiB) the write-ahead log is copied into the database; only then is fsync called."""
LOG_BYTES_KEPT = 64 << 20
"""A larger log is truncated to this once its content is in the database."""
STATEMENTS_CACHED = 256
FOLLOW_S = 0.05
"""Transactions that read look this often for another file of that name; those that write always do."""
CONNECTION_FILES = 4
"""A connection opens the database, its log, the index of the log, and for a moment their folder."""

_SUFFIXES = ("", "-wal", "-shm")
_File = tuple[int, int] | None

log = logging.getLogger(__name__)

_REBUILD_ADVICE = "move the file away and restart the server: the metadata is rebuilt from the chunks"


class FairLock:
    """A lock that threads get in the order in which they asked for it. Whoever gives a `Lock` back and takes it again
    overtakes those who wait.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards the two below
        self._is_held = False
        self._waiting: deque[Lock] = deque()  # each is held until its thread is the next one

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_held:
                self._is_held = True
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False


class Connections:
    """Thread-safe. Opening creates the database, or checks an existing one.

    Every method raises Unavailable, StorageFull or Damaged; opening also raises InvalidInput, for a database of another
    program or of a newer schema.
    """

    def __init__(self, path: str) -> None:
        self.path = self._path = path
        self._write_lock = FairLock()  # held during a transaction of `_writer`
        self._readers_lock = Lock()  # guards all below
        self._idle_readers: list[sqlite3.Connection] = []
        self._is_closed = False
        self._lineage = 0
        self._followed_s = -math.inf  # changed without the lock: any thread may look at the file
        self._files: list[_File] = []  # the database, its log and its index, as this process has opened them
        with self._translated():
            if path != MEMORY:
                _create_file(path)
            self._writer = self._open_writer()

    def _open_writer(self) -> sqlite3.Connection:
        writer = _connect(self._path)
        try:
            _prepare(writer, self._path)
        except BaseException:
            writer.close()
            raise
        self._files = [_file_at(self._path + suffix) for suffix in _SUFFIXES]
        return writer

    def lineage(self) -> int:
        """How often another file has taken the place of the database."""
        return self._lineage

    def _follow_file(self) -> None:
        """Open the database again if another file has its name: a restored one. Without a file, the old one serves."""
        if self._path == MEMORY:
            return
        now_s = time.monotonic()
        if not self._is_replaced():
            self._followed_s = now_s
            return
        with self._write_lock, self._readers_lock:
            self._check_open()
            if not self._is_replaced():
                return
            log.warning("metadata database %s was replaced by another file: opening it", self._path)
            self._lineage += 1
            for connection in (*self._idle_readers, self._writer):
                connection.close()
            self._idle_readers.clear()
            for suffix, file in list(zip(_SUFFIXES, self._files, strict=False))[1:]:
                if file is not None and file == _file_at(self._path + suffix):
                    os.unlink(
                        self._path + suffix
                    )  # SQLite would apply the log of the old file to the new one
            self._files = []  # so that a failure is tried again
            self._writer = self._open_writer()

    def _is_replaced(self) -> bool:
        try:
            present = os.stat(self._path)
        except FileNotFoundError:
            return False
        return [(present.st_dev, present.st_ino)] != self._files[:1]

    @contextmanager
    def writing(self, is_durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction that may write; only one runs at a time. Rolled back if the block raises.

        With `is_durable`, it and all earlier ones survive a power cut once the block has ended.
        """
        with self._translated():
            self._follow_file()
        with self._translated(), self._write_lock:
            self._check_open()
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            with _transaction(self._writer, "BEGIN IMMEDIATE"):
                yield self._writer

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the database, despite concurrent writes."""
        if self._path == MEMORY:
            with self.writing() as connection:
                yield connection
            return
        with self._translated():
            if time.monotonic() >= self._followed_s + FOLLOW_S:
                self._follow_file()
            reader, lineage = self._take_reader()
            try:
                reader.execute("BEGIN")
                try:
                    yield reader
                finally:
                    if reader.in_transaction:
                        reader.execute("COMMIT")  # it has changed nothing
            finally:
                self._give_back(reader, lineage)

    def close(self) -> None:
        """Waits for the transaction that writes; readers in use are closed at the end of their transactions."""
        with self._write_lock, self._readers_lock:
            if not self._is_closed:
                self._is_closed = True
                for reader in self._idle_readers:
                    reader.close()
                self._writer.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable(f"metadata database {self._path} is closed")

    def _take_reader(self) -> tuple[sqlite3.Connection, int]:
        """A reader, and the lineage that it sees."""
        with self._readers_lock:
            self._check_open()
            lineage = self._lineage
            if self._idle_readers:
                return self._idle_readers.pop(), lineage
        return _connect(self._path), lineage

    def _give_back(self, reader: sqlite3.Connection, lineage: int) -> None:
        with self._readers_lock:
            if self._is_closed or lineage != self._lineage:
                reader.close()
            else:
                self._idle_readers.append(reader)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, self._path) from error
        except OSError as error:
            raise Unavailable(f"metadata database {self._path}: {error.strerror}") from error


def _file_at(path: str) -> _File:
    """Device and inode; None if there is no file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _translate(error: sqlite3.Error, path: str) -> DieselfsError:
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the low byte of extended codes
        case sqlite3.SQLITE_FULL:
            return StorageFull(f"metadata database {path}: {error}")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Damaged(f"metadata database {path} is damaged ({error}); {_REBUILD_ADVICE}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR if fault := _fault_of_opening():
            return Unavailable(f"metadata database {path}: {fault}")
        case _:
            return Unavailable(f"metadata database {path}: {error}")


def _fault_of_opening() -> str:
    """Why this process cannot open the files of a connection; empty if it can. SQLite does not say it."""
    opened: list[int] = []
    try:
        while len(opened) < CONNECTION_FILES:
            opened.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return ""


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # after some errors (a full disk) SQLite has rolled back already
            connection.execute("ROLLBACK")
        raise


def _create_file(path: str) -> None:
    """Create the file if there is none, with mode 0600; SQLite gives its log the same mode.

    An existing file is not opened: closing it would release the locks that SQLite holds on it in this process.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "is a symbolic link")
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # only `_transaction` begins and ends transactions
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
    )
    for setting in (
        "synchronous = NORMAL",  # `docs/internals/durability.md` explains why this is enough
        "temp_store = MEMORY",
        "trusted_schema = OFF",
        f"cache_size = -{CACHE_KIB}",
        f"journal_size_limit = {LOG_BYTES_KEPT}",
        f"wal_autocheckpoint = {LOG_PAGES}",
    ):
        connection.execute(f"PRAGMA {setting}")
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables if the database is empty, else check the schema; then create the temporary tables."""
    with _transaction(connection, "BEGIN IMMEDIATE"):  # of processes that start together, only one creates
        if _number(connection, "SELECT count(*) FROM sqlite_schema") == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in TABLES:
                connection.execute(statement)
        _check_schema(connection, path)
        if _number(connection, "SELECT count(*) FROM sqlite_schema WHERE name = 'stored'") == 0:
            for statement in STORED_TABLE:
                connection.execute(statement)
        if _number(connection, "SELECT count(*) FROM sqlite_schema WHERE name = 'counted'") == 0:
            connection.execute(COUNTED_TABLE)
    if path != MEMORY and _switch_to_log(connection) != "wal":
        raise Unavailable(
            f"metadata database {path}: this file system does not support a write-ahead log; use a local disk"
        )
    connection.execute(STAGED)
    connection.execute(CHANGED)


def _switch_to_log(connection: sqlite3.Connection) -> str:
    """Set the journal mode of the database file to WAL; returns the mode that SQLite has set.

    SQLite needs exclusive access here and does not wait for other processes that are opening the file: retry.
    """
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(BUSY_PAUSE_S)


def _check_schema(connection: sqlite3.Connection, path: str) -> None:
    if _number(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise InvalidInput(f"metadata database {path}: the database belongs to another program")
    version = _number(connection, "PRAGMA user_version")
    if version > SCHEMA_VERSION:
        raise InvalidInput(
            f"metadata database {path}: its schema {version} is newer than {SCHEMA_VERSION}, the newest known here; "
            "start a newer dieselfs, or rebuild into another file"
        )
    if version < SCHEMA_VERSION:
        raise Damaged(f"metadata database {path}: unknown schema {version}; {_REBUILD_ADVICE}")


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)
