"""Values of an LMDB environment by their keys, in the order of the keys. This module maps files."""

import os
from collections.abc import Iterator
from typing import Any

from dieselfs.errors import Damaged
from dieselfs_tools.importing.inputs import Input
from dieselfs_tools.importing.packages import required
from dieselfs_tools.importing.record import Record

DATA_FILE = "data.mdb"
DATABASES_MAX = 256
"""Named databases in one environment."""

_DATABASE_BYTES = 48
"""Of the value of a key that names a database."""


def read(source: Input) -> Iterator[Record]:
    """A named database is a folder. Raises Damaged; InvalidInput if there is no environment."""
    lmdb = required("lmdb")
    path = source.file()
    file = os.path.join(path, DATA_FILE) if source.is_folder else path
    mtime_ns = os.stat(file).st_mtime_ns if source.is_folder else source.mtime_ns
    try:
        with lmdb.open(
            path, subdir=source.is_folder, readonly=True, lock=False, readahead=False, max_dbs=DATABASES_MAX
        ) as environment:
            _check_size(environment, file)
            with environment.begin() as transaction:
                for key, value in transaction.cursor():
                    database = _database(lmdb, environment, transaction, key, value)
                    if database is None:
                        yield Record.of(key, value, mtime_ns)
                    else:
                        for name, content in transaction.cursor(database):
                            yield Record.of(key + b"/" + name, content, mtime_ns)
    except lmdb.Error as error:
        raise Damaged(f"cannot be read as LMDB: {error}") from None


def _check_size(environment: Any, file: str) -> None:
    """The library would die from SIGBUS at a page that is not there. Raises Damaged."""
    needed_bytes = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    found_bytes = os.path.getsize(file)
    if found_bytes < needed_bytes:
        raise Damaged(f"cut off: it has {found_bytes} of {needed_bytes} bytes")


def _database(lmdb: Any, environment: Any, transaction: Any, key: bytes, value: bytes) -> Any:
    """The named database of a key; None for an ordinary key."""
    if len(value) != _DATABASE_BYTES or b"\0" in key:
        return None
    try:
        return environment.open_db(key, transaction, create=False)
    except lmdb.IncompatibleError:
        return None
