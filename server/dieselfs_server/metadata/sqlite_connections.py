"""Connections to one SQLite database: a writer under a lock, and as many readers as there are threads that read.

Readers see the database as it was when their transaction began and never wait for the writer (the log is written
ahead). A database in memory has one connection, which all share. Every error of SQLite leaves here as one of ours.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from dieselfs.errors import Damaged, DieselfsError, InvalidInput, StorageFull, Unavailable
from dieselfs_server.metadata.sqlite_schema import APPLICATION_ID, SCHEMA_VERSION, STAGED, TABLES

MEMORY = ":memory:"

BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for another process that holds the database."""
BUSY_PAUSE_S = 0.01
CACHE_KIB = 64 * 1024
LOG_PAGES = 4096
"""Once the write-ahead log has as many pages (4 KiB), it goes into the database; only then is fsync called."""
LOG_BYTES_KEPT = 64 << 20
"""A log that grew beyond this is cut back once its content is in the database."""
STATEMENTS_CACHED = 256

_REBUILD_ADVICE = "move the file away and start again: the metadata is rebuilt from the chunks"


class Connections:
    """Safe to use from any number of threads. Opening creates the database, or checks the one that is there.

    Every method raises Unavailable, StorageFull or Damaged; opening raises InvalidInput too, for a database that is not
    ours or newer than we are.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._write_lock = Lock()  # held during a transaction of `_writer`
        self._readers_lock = Lock()  # guards `_idle_readers` and `_is_closed`
        self._idle_readers: list[sqlite3.Connection] = []
        self._is_closed = False
        with self._translated():
            if path != MEMORY:
                _create_file(path)
            self._writer = _connect(path)
            try:
                _prepare(self._writer, path)
            except BaseException:
                self._writer.close()
                raise

    @contextmanager
    def writing(self, is_durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction that may write; nobody else writes meanwhile. Rolled back if the block raises.

        With `is_durable` it survives a power cut, with all before it, once the block is left.
        """
        with self._translated(), self._write_lock:
            self._check_open()
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            with _transaction(self._writer, "BEGIN IMMEDIATE"):
                yield self._writer

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the database, whatever is written meanwhile."""
        if self._path == MEMORY:
            with self.writing() as connection:
                yield connection
            return
        with self._translated():
            reader = self._take_reader()
            try:
                with _transaction(reader, "BEGIN"):
                    yield reader
            finally:
                self._give_back(reader)

    def close(self) -> None:
        """Waits for the transaction that writes; connections that read are closed when they are done."""
        with self._write_lock, self._readers_lock:
            if not self._is_closed:
                self._is_closed = True
                for reader in self._idle_readers:
                    reader.close()
                self._writer.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable(f"metadata database {self._path} is closed")

    def _take_reader(self) -> sqlite3.Connection:
        with self._readers_lock:
            self._check_open()
            if self._idle_readers:
                return self._idle_readers.pop()
        return _connect(self._path)

    def _give_back(self, reader: sqlite3.Connection) -> None:
        with self._readers_lock:
            if self._is_closed:
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


def _translate(error: sqlite3.Error, path: str) -> DieselfsError:
    code: int = (
        getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    )  # the low byte of extended codes
    match code:
        case sqlite3.SQLITE_FULL:
            return StorageFull(f"metadata database {path}: {error}")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Damaged(f"metadata database {path} is damaged ({error}); {_REBUILD_ADVICE}")
        case _:
            return Unavailable(f"metadata database {path}: {error}")


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors (a full disk) make SQLite roll back by itself
            connection.execute("ROLLBACK")
        raise


def _create_file(path: str) -> None:
    """Create the file if there is none, for its owner alone; SQLite gives its log the same mode.

    One that is there is not opened: closing it would take away the locks that SQLite has on it in this process.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "is a symbolic link")
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # transactions are begun and ended by `_transaction` alone
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
    )
    connection.execute("PRAGMA synchronous = NORMAL")  # `docs/durability.md` says why this is enough
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables if the database is empty, else make sure that it is ours. Then the writer's staging table."""
    with _transaction(connection, "BEGIN IMMEDIATE"):  # of several processes that start together, one creates
        if _number(connection, "SELECT count(*) FROM sqlite_schema") == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in TABLES:
                connection.execute(statement)
        _check_schema(connection, path)
    if path != MEMORY and _switch_to_log(connection) != "wal":
        raise Unavailable(
            f"metadata database {path}: this file system cannot share a write-ahead log; use a local disk"
        )
    connection.execute(STAGED)


def _switch_to_log(connection: sqlite3.Connection) -> str:
    """Write ahead from now on, whoever opens the database; returns the mode that it really has.

    SQLite wants the database for itself at this moment, and does not wait for others that are just opening it.
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
        raise InvalidInput(f"metadata database {path}: this is a database of another program")
    version = _number(connection, "PRAGMA user_version")
    if version > SCHEMA_VERSION:
        raise InvalidInput(
            f"metadata database {path}: its schema {version} is newer than this version of dieselfs, which knows "
            f"{SCHEMA_VERSION}; start the newer version, or let this one rebuild into another file"
        )
    if version < SCHEMA_VERSION:
        raise Damaged(f"metadata database {path}: there is no schema {version}; {_REBUILD_ADVICE}")


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)
