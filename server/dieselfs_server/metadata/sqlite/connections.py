"""Connections to one SQLite database: one writer under a lock, and one reader for each thread that reads.

A reader sees the database as of the begin of its transaction and never waits for the writer (write-ahead log). All
threads share the single connection of a database in memory. Every error of SQLite becomes a DieselfsError.
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

from dieselfs.errors import Damaged, DieselfsError, InvalidInput, StorageFull, Unavailable
from dieselfs_server.metadata.sqlite.schema import (
    APPLICATION_ID,
    CHANGED,
    OLDEST_VERSION,
    SCHEMA_VERSION,
    STAGED,
    missing,
)

MEMORY = ":memory:"

BUSY_TIMEOUT_S = 30.0
"""Timeout of a transaction that waits for another process."""
BUSY_PAUSE_S = 0.003
"""One that writes looks again after this time. SQLite itself would pause for up to 0.1 s, and miss the moments between
large transactions of another process.
"""
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
    """Thread-safe. Opening creates the database, or checks and upgrades an existing one.

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
            # With a write-ahead log only BEGIN waits, in `_unless_busy`.
            writer.execute("PRAGMA busy_timeout = 0")
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
            with _writing(self._writer):
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
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that writes, for one process at a time."""
    _unless_busy(connection, "BEGIN IMMEDIATE")
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
    """Create the tables that an empty or an older database lacks; then the temporary tables."""
    with _writing(connection):  # of processes that start together, only one creates
        present = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        if present:
            _check_schema(connection, path)
        if not present or _number(connection, "PRAGMA user_version") < SCHEMA_VERSION:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in missing(present):
                connection.execute(statement)
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
    (mode,) = _unless_busy(connection, "PRAGMA journal_mode = WAL").fetchone()
    return str(mode)


def _unless_busy(connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
    """Execute a statement once no other process has the lock that it needs."""
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return connection.execute(statement)
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the low byte of extended codes
            if not is_busy or time.monotonic() > deadline_s:
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
    if version < OLDEST_VERSION:
        raise Damaged(f"metadata database {path}: unknown schema {version}; {_REBUILD_ADVICE}")


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)
