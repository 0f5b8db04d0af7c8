"""Values of an LMDB environment by their keys, in the order of the keys. This module maps files."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dieselfs.errors import Damaged
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import Place, Record

DATA_FILE = "data.mdb"
DATABASES_MAX = 256
"""Named databases in one environment."""

_DATABASE_BYTES = 48
"""The length of the value of a key that names a database."""


def recognizes(source: Input) -> bool:
    """Whether a local folder is an environment."""
    return source.is_folder and bool(source.path) and os.path.exists(os.path.join(source.path, DATA_FILE))


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
            with environment.begin(buffers=True) as transaction:
                mapping = _Mapping(file, source.maps)
                for key, value in transaction.cursor():
                    database = _database(lmdb, environment, transaction, bytes(key), value)
                    if database is None:
                        yield Record.of(bytes(key), bytes(value), mtime_ns, mapping.place(value))
                    else:
                        for name, content in transaction.cursor(database):
                            full = bytes(key) + b"/" + bytes(name)
                            yield Record.of(full, bytes(content), mtime_ns, mapping.place(content))
    except lmdb.Error as error:
        raise Damaged(f"cannot be read as LMDB: {error}") from None


class _Mapping:
    """The place in a mapped file of a value in memory: where the library has mapped the file, the kernel says."""

    def __init__(self, file: str, maps: Callable[[], bytes]) -> None:
        self._file, self._maps = file, maps
        self._inode = os.stat(file).st_ino
        self._begin = self._end = self._offset = 0

    def place(self, value: memoryview) -> Place | None:
        """None if the value is not in the file, or empty."""
        if not len(value):
            return None
        address = int(np.frombuffer(value, np.uint8).__array_interface__["data"][0])
        if not self._begin <= address < self._end and not self._find(address):
            return None
        return Place(self._file, address - self._begin + self._offset)

    def _find(self, address: int) -> bool:
        for line in self._maps().splitlines():
            addresses, _, offset, _, inode, *_ = line.split(maxsplit=5)
            begin, end = (int(text, 16) for text in addresses.split(b"-"))
            # The device here differs from that of `stat` on overlayfs and btrfs.
            if begin <= address < end and int(inode) == self._inode:
                self._begin, self._end, self._offset = begin, end, int(offset, 16)
                return True
        return False


def _check_size(environment: Any, file: str) -> None:
    """The library would die from SIGBUS at a page that is not there. Raises Damaged."""
    needed_bytes = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    found_bytes = os.path.getsize(file)
    if found_bytes < needed_bytes:
        raise Damaged(f"cut off: it has {found_bytes} of {needed_bytes} bytes")


def _database(lmdb: Any, environment: Any, transaction: Any, key: bytes, value: memoryview) -> Any:
    """The named database of a key; None for an ordinary key."""
    if len(value) != _DATABASE_BYTES or b"\0" in key:
        return None
    try:
        return environment.open_db(key, transaction, create=False)
    except lmdb.IncompatibleError:
        return None
