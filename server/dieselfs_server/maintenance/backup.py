"""Copies what is small and cannot be made again from chunks: the records of the object store (users, names of datasets,
tags, the identity of the servers). Metadata in SQLite is copied too, which saves a rebuild.

    FOLDER/2026-01-31T02:00:00Z/records/NAME, metadata.db       each copy is complete: it gets its name at the end

A copy holds the private key of the servers: its folder is private. This module reads and writes files.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dieselfs.errors import InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.posix import write_new_file
from dieselfs_server.store.wrapper import MARKER_RECORD, marker_id

COPIES_KEPT = 7
"""Older copies are removed once a new one is complete."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PARTIAL = ".partial"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_COPY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_INTERRUPTED = re.compile(_COPY.pattern + re.escape(_PARTIAL))

log = logging.getLogger(__name__)


def back_up(store: ObjectStore, database: Path | None, folder: Path, now_s: float) -> Path:
    """Make a copy below `folder`; returns its place. `database`: of metadata in SQLite.

    Raises Unavailable, also if another copy is being made there, StorageFull, and what the store raises. What an
    interrupted copy has left is removed.
    """
    with _translated(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(folder):
        return _back_up(store, database, folder, now_s)


def _back_up(store: ObjectStore, database: Path | None, folder: Path, now_s: float) -> Path:
    copy = folder / time.strftime(_TIME, time.gmtime(now_s))
    aside = copy.with_suffix(_PARTIAL)
    with _translated(folder):
        for left in _named(folder, _INTERRUPTED):
            shutil.rmtree(left)
        (aside / "records").mkdir(mode=0o700, parents=True)
        aside.chmod(0o700)
    names = sorted({*store.list_records(""), MARKER_RECORD})  # a marked store does not list its marker
    for name in names:
        content = store.get_record(name)
        if content is not None:  # else it was removed meanwhile
            with _translated(folder):
                write_new_file(str(aside / "records" / name), [content])
    with _translated(folder):
        if database is not None and database.exists():
            _copy_database(database, aside / "metadata.db")
        aside.rename(copy)
        for old in _copies(folder)[:-COPIES_KEPT]:
            shutil.rmtree(old)
    log.info("copied %d records%s to %s", len(names), " and metadata" if database else "", copy)
    return copy


def put_back(store: ObjectStore, database: Path | None, folder: Path) -> int:
    """Put back what is missing, from a copy, or from the newest one in `folder`; returns the number of records.

    `store`: opened without asking for its marker, which may be lost as well. Nothing is replaced. Raises NotFound
    without a copy, InvalidInput if the store is not the one that was copied, Unavailable, StorageFull.
    """
    with _translated(folder):
        found = folder if (folder / "records").is_dir() else next(reversed(_copies(folder)), None)
        if found is None:
            raise NotFound(f"{folder} has no copy: give a folder that --backup has written")
        files = sorted((found / "records").iterdir())
        contents = {file.name: file.read_bytes() for file in files}
    marker = store.get_record(MARKER_RECORD)
    if marker is None and next(iter(store.list_datasets()), None) is None:
        raise Unavailable(
            "the object store has neither a marker nor datasets: mount its file system, then restore"
        )
    copied = contents.get(MARKER_RECORD)
    # Not the format, which rises with the first reference.
    if marker is not None and (copied is None or marker_id(marker) != marker_id(copied)):
        raise InvalidInput(f"{found} is of another object store: its marker differs")
    added = sum(store.create_record(name, content) for name, content in contents.items())
    with _translated(folder):
        if database is not None and (found / "metadata.db").exists() and not database.exists():
            database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for suffix in (
                "-wal",
                "-shm",
                "-journal",
            ):  # of the lost one: SQLite would apply them to this one
                database.with_name(database.name + suffix).unlink(missing_ok=True)
            aside = database.with_name(database.name + _PARTIAL)
            aside.unlink(missing_ok=True)
            shutil.copyfile(found / "metadata.db", aside)
            aside.chmod(0o600)
            _sync(aside)
            aside.rename(database)
            _sync(database.parent)
            log.info(
                "restored %s: it lacks what was stored since; run 'dlcmd rebuild --all --since' its time",
                database,
            )
    log.info("restored %d records from %s", added, found)
    return added


def _copies(folder: Path) -> list[Path]:
    """Complete ones, the oldest first."""
    return _named(folder, _COPY) if folder.is_dir() else []


def _named(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Raises Unavailable if another copy is being made in the folder; some file systems cannot tell."""
    with _translated(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"another copy is being made in {folder}: wait for it, or give another folder"
            ) from None
        except OSError as error:
            log.warning("%s cannot be locked (%s): make one copy at a time there", folder, error.strerror)
        yield
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_database(source: Path, target: Path) -> None:
    """As of one moment, while a server writes to it."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(source)) as origin, closing(sqlite3.connect(target)) as copy:
        origin.backup(copy)  # durable, as every transaction of SQLite


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in _FULL else Unavailable
        raise kind(f"the copy in {folder}: {error.filename or folder}: {error.strerror or error}") from None
    except sqlite3.Error as error:
        raise Unavailable(f"the copy in {folder}: metadata: {error}") from None
