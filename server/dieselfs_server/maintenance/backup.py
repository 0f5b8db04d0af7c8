"""Copies what is small and cannot be made again from chunks: the records of the object store (users, names of datasets,
tags, the identity of the servers). Metadata in SQLite is copied too, which saves a rebuild.

    FOLDER/2026-01-31T02:00:00Z/records/NAME, metadata.db       each copy is complete: it gets its name at the end

A copy holds the private key of the servers: its folder is private. This module reads and writes files.
"""

import errno
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
from dieselfs_server.store.marker import MARKER_RECORD

COPIES_KEPT = 7
"""Older copies are removed once a new one is complete."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PARTIAL = ".partial"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_COPY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

log = logging.getLogger(__name__)


def back_up(store: ObjectStore, database: Path | None, folder: Path, now_s: float) -> Path:
    """Make a copy below `folder`; returns its place. `database`: of metadata in SQLite.

    Raises Unavailable, StorageFull, and what the store raises. What an interrupted copy has left is removed.
    """
    copy = folder / time.strftime(_TIME, time.gmtime(now_s))
    aside = copy.with_suffix(_PARTIAL)
    with _translated(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob(f"*{_PARTIAL}"):
            shutil.rmtree(left)
        (aside / "records").mkdir(mode=0o700, parents=True)
        aside.chmod(0o700)
    names = sorted({*store.list_records(""), MARKER_RECORD})  # a marked store does not list its marker
    for name in names:
        content = store.get_record(name)
        if content is not None:  # else it was removed meanwhile
            with _translated(folder):
                _write(aside / "records" / name, content)
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
    if marker is not None and marker != contents.get(MARKER_RECORD):
        raise InvalidInput(f"{found} is of another object store: its marker differs")
    added = sum(store.create_record(name, content) for name, content in contents.items())
    with _translated(folder):
        if database is not None and (found / "metadata.db").exists() and not database.exists():
            database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = database.with_suffix(_PARTIAL)
            shutil.copyfile(found / "metadata.db", aside)
            aside.chmod(0o600)
            aside.rename(database)
            log.info(
                "restored %s: it lacks what was stored since; run 'dlcmd rebuild --all --since' its time",
                database,
            )
    log.info("restored %d records from %s", added, found)
    return added


def _copies(folder: Path) -> list[Path]:
    """Complete ones, the oldest first."""
    return sorted(path for path in folder.iterdir() if _COPY.fullmatch(path.name)) if folder.is_dir() else []


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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
