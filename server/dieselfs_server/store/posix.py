"""The object store in a folder of a local disk, Lustre, or any other file system with durable fsync.

    <root>/<dataset ID, hex>/<name[:3]>/<name[3:5]>/<name>     a chunk; `name` is its ID as printed
    <root>/<dataset ID, hex>/tmp/<name>.<random>               a chunk that is being written
    <root>/records/<record>                                    a record; .<record>.<random> while it is written
    <root>/dropped.<dataset ID, hex>.<random>/                 a dataset that is being removed

Names begin with the time, so folders sort by it. Five characters are four seconds, which bounds the size of a folder,
and a listing since T reads only folders from T on. Paths of chunks are made from IDs only. Several processes, also on
several machines, may use one root. Files are written under a temporary name, and durable before a reply;
`docs/internals/durability.md` has the order of the steps, and the states after a crash. A failed fsync is never
repeated, because the kernel may have dropped the pages and report success the second time. The file is removed, and the
writer writes its content again. All paths are absolute. Functions of this module raise OSError; `translated` turns it
into a DieselfsError.
"""

import ctypes
import errno
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from dieselfs.chunk.ids import chunk_name, earliest_chunk_id, parse_chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs.net.address import path_of
from dieselfs_server.store.interface import (
    DATASET_FOLDER,
    RECORD_NAME,
    Buffer,
    check_record_name,
    dataset_folder,
    require_length,
    with_chunks,
)
from dieselfs_server.store.wrapper import missing

log = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600
FOLDERS_REMEMBERED_MAX = 4096

_BUFFERS_PER_WRITE_MAX = os.sysconf("SC_IOV_MAX")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn an OSError of the block into StorageFull or Unavailable, with `path` and the cause."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            log.error("object store: %s: %s", error.filename or path, error.strerror)
            raise StorageFull(
                f"the object store is full: {error.strerror}; free space there "
                "(dlcmd purge frees that of deleted files)"
            ) from error
        raise Unavailable(f"object store: {error.filename or path}: {error.strerror or error}") from error


def write_new_file(path: str, parts: Sequence[Buffer]) -> None:
    """Create `path` from its parts, joined; its content is durable, its name not yet. An error leaves no file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            _write_all(descriptor, parts)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(path)
        raise


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    pending = [memoryview(part).cast("B") for part in parts if len(part)]
    while pending:
        written = os.writev(descriptor, pending[:_BUFFERS_PER_WRITE_MAX])
        whole = 0
        while whole < len(pending) and written >= len(pending[whole]):
            written -= len(pending[whole])
            whole += 1
        del pending[:whole]
        if pending:
            pending[0] = pending[0][written:]


def link_new_name(temporary: str, final: str) -> None:
    """Give the file the name `final` too. Raises FileExistsError if the name is taken.

    On a file system without hard links the file is renamed, which removes the temporary name.
    """
    try:
        os.link(temporary, final, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_new(temporary, final)


def _rename_new(temporary: str, final: str) -> None:
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    if rename(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(final), _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), final)


def open_to_read(path: str) -> int:
    """A descriptor, which the caller closes. Raises Damaged for anything but a file; a FIFO does not block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise Damaged(f"object store: {path}: it is not a regular file; remove it")


def read_range(path: str, offset: int, length: int) -> bytes:
    """Up to `length` bytes from `offset` on; fewer only where the file ends."""
    descriptor = open_to_read(path)
    try:
        data = os.pread(descriptor, length, offset)
        while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def names_in(path: str) -> list[str]:
    """Names in a folder, sorted; none if it is not a folder."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_tree(path: str) -> None:
    """Remove a folder and its content, without following links. Other processes may remove it at the same time."""
    for folder, subfolders, files in os.walk(path, topdown=False, onerror=_raise_unless_gone):
        for name in files:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        for name in subfolders:
            subfolder = os.path.join(folder, name)
            with suppress(FileNotFoundError):
                os.unlink(subfolder) if os.path.islink(subfolder) else os.rmdir(subfolder)
    with suppress(FileNotFoundError):
        os.rmdir(path)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class DurableFolders:
    """Makes the folders below `root`, each durable in its parent, and remembers them: a folder costs one fsync.

    Thread-safe.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._make_root(root)
        self._remembered: set[str] = set()  # used without a lock: each operation on it is atomic

    def _make_root(self, path: str) -> None:
        if not os.path.isdir(path):
            self._make_root(os.path.dirname(path))
            _make_folder(path)

    def make(self, path: str) -> None:
        """Make `path` and the missing folders between it and the root."""
        if path == self._root or path in self._remembered:
            return
        self.make(os.path.dirname(path))
        _make_folder(path)
        if len(self._remembered) >= FOLDERS_REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered.add(path)

    def forget(self) -> None:
        """Check every folder again at its next use, because another process has removed some."""
        self._remembered.clear()


def _make_folder(path: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(path, FOLDER_MODE)
    sync_folder(os.path.dirname(path))  # also if it existed: its maker may have died before this step


TEMPORARY_AGE_MAX_S = 3600.0
"""An older temporary file belongs to a writer that died."""

_TEMPORARY = "tmp"
_RECORDS = "records"
_DROPPED = "dropped."


class PosixStore:
    """An `ObjectStore`. Makes the folder `root` if it is missing, and cleans up after writers that died.

    `clock`: seconds since 1970; the clock of the time stamps of the file system.
    """

    def __init__(self, root: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self._root = os.path.abspath(root)
        with translated(self._root):
            self._folders = DurableFolders(self._root)
            self._clean_up(clock() - TEMPORARY_AGE_MAX_S)

    @classmethod
    def open(cls, url: str, is_new: bool) -> Self:
        """The store at `posix:///PATH`. Raises Unavailable without the folder, unless it `is_new`."""
        root = path_of(url)
        if not root:
            raise InvalidInput(f"store {url!r}: name a folder: posix:///PATH")
        if not (is_new or os.path.isdir(root)):
            raise Unavailable(missing(url))
        return cls(root)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        path = self._chunk_path(dataset_id, chunk_id)
        with translated(path):
            try:
                self._put(dataset_id, chunk_id, parts)
            except FileNotFoundError:  # another process has removed the folders: make them again, once
                self._folders.forget()
                self._put(dataset_id, chunk_id, parts)

    def _put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        path = self._chunk_path(dataset_id, chunk_id)
        folder = os.path.dirname(path)
        aside = os.path.join(self._dataset_path(dataset_id), _TEMPORARY)
        temporary = os.path.join(aside, f"{chunk_name(chunk_id)}.{secrets.token_hex(8)}")
        self._folders.make(aside)
        self._folders.make(folder)
        write_new_file(temporary, parts)
        try:
            try:
                link_new_name(temporary, path)
            except FileExistsError:
                sync_folder(folder)  # after AlreadyExists, the chunk must be durable
                raise AlreadyExists(f"chunk {chunk_name(chunk_id)} already exists") from None
            try:
                sync_folder(folder)
            except OSError:
                os.unlink(path)
                raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)  # last: while it exists, the new name may not be durable

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        path = self._chunk_path(dataset_id, chunk_id)
        with _reading(path, chunk_id):
            return require_length(read_range(path, offset, length), chunk_id, offset, length)

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int:
        path = self._chunk_path(dataset_id, chunk_id)
        with _reading(path, chunk_id):
            return open_to_read(path)

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        path = self._chunk_path(dataset_id, chunk_id)
        with _reading(path, chunk_id):
            return os.lstat(path).st_size

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Empty folders stay: there is at most one for each four seconds of writing."""
        path = self._chunk_path(dataset_id, chunk_id)
        with translated(path), suppress(FileNotFoundError):
            with suppress(FileNotFoundError):
                os.unlink(path)
            sync_folder(os.path.dirname(path))

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        return _chunks_from(self._dataset_path(dataset_id), chunk_name(earliest_chunk_id(since_s)))

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        return with_chunks(self, _names(self._root), without)

    def delete_dataset(self, dataset_id: bytes) -> None:
        """One rename removes all chunks at once; then the space is freed."""
        aside = os.path.join(self._root, f"{_DROPPED}{dataset_id.hex()}.{secrets.token_hex(8)}")
        with translated(self._root):
            with suppress(FileNotFoundError):
                os.rename(self._dataset_path(dataset_id), aside)
            sync_folder(self._root)
            self._folders.forget()
            self._remove_dropped()

    @contextmanager
    def _written(self, name: str, content: bytes) -> Iterator[tuple[str, str]]:
        """A new file, synced, and the path of the record that it becomes in the block; durable after it."""
        path = self._record_path(name)
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        with translated(path):
            self._folders.make(folder)
            write_new_file(temporary, [content])
            try:
                yield temporary, path
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
            sync_folder(folder)  # also if it existed: its creator may have died before this step

    def put_record(self, name: str, content: bytes) -> None:
        with self._written(name, content) as (temporary, path):
            os.replace(temporary, path)

    def create_record(self, name: str, content: bytes) -> bool:
        with self._written(name, content) as (temporary, path):
            try:
                link_new_name(temporary, path)
            except FileExistsError:
                return False
            return True

    def get_record(self, name: str) -> bytes | None:
        path = self._record_path(name)
        with translated(path):
            try:
                return read_range(path, 0, os.lstat(path).st_size)
            except FileNotFoundError:
                return None

    def list_records(self, prefix: str) -> list[str]:
        return sorted(
            name
            for name in _names(os.path.join(self._root, _RECORDS))
            if name.startswith(prefix) and RECORD_NAME.fullmatch(name)
        )

    def delete_record(self, name: str) -> None:
        path = self._record_path(name)
        with translated(path), suppress(FileNotFoundError):
            os.unlink(path)
            sync_folder(os.path.dirname(path))

    def close(self) -> None:
        return

    def _dataset_path(self, dataset_id: bytes) -> str:
        return os.path.join(self._root, dataset_folder(dataset_id))

    def _chunk_path(self, dataset_id: bytes, chunk_id: bytes) -> str:
        name = chunk_name(chunk_id)
        return os.path.join(self._dataset_path(dataset_id), name[:3], name[3:5], name)

    def _record_path(self, name: str) -> str:
        return os.path.join(self._root, _RECORDS, check_record_name(name))

    def _clean_up(self, oldest_s: float) -> None:
        """Finish the work of dead writers: names that may not be durable, temporary files, partly removed datasets."""
        for dataset_id in map(bytes.fromhex, filter(DATASET_FOLDER.fullmatch, _names(self._root))):
            aside = os.path.join(self._dataset_path(dataset_id), _TEMPORARY)
            for name in _names(aside):
                self._finish(dataset_id, os.path.join(aside, name), oldest_s)
        records = os.path.join(self._root, _RECORDS)
        for name in _names(records):
            if name.startswith("."):
                _remove_old(os.path.join(records, name), oldest_s)
        self._remove_dropped()

    def _finish(self, dataset_id: bytes, temporary: str, oldest_s: float) -> None:
        with suppress(InvalidInput, FileNotFoundError):
            chunk_id = parse_chunk_name(os.path.basename(temporary).partition(".")[0])
            folder = os.path.dirname(self._chunk_path(dataset_id, chunk_id))
            if os.lstat(temporary).st_nlink > 1:  # it has its final name: stored, but perhaps not durable
                self._folders.make(folder)
                sync_folder(folder)
        _remove_old(temporary, oldest_s)

    def _remove_dropped(self) -> None:
        for name in _names(self._root):
            if name.startswith(_DROPPED):
                remove_tree(os.path.join(self._root, name))


def _chunks_from(folder: str, first: str) -> Iterator[bytes]:
    """IDs of the chunks in a dataset's folder whose names are not before `first`, ascending."""
    for hours in _time_folders(folder, "", 3, first):
        for seconds in _time_folders(os.path.join(folder, hours), hours, 2, first):
            for name in _names(os.path.join(folder, hours, seconds)):
                if name >= first and name.startswith(hours + seconds):
                    with suppress(InvalidInput):  # not a chunk, but a file of another program
                        yield parse_chunk_name(name)


def _time_folders(folder: str, prefix: str, characters: int, first: str) -> list[str]:
    """The folders in `folder` that can have chunks from `first` on; names of chunks in `folder` begin with `prefix`."""
    first = first[: len(prefix) + characters]
    return [name for name in _names(folder) if len(name) == characters and prefix + name >= first]


def _names(folder: str) -> list[str]:
    with translated(folder):
        return names_in(folder)


def _remove_old(path: str, oldest_s: float) -> None:
    with suppress(FileNotFoundError):
        if os.lstat(path).st_mtime < oldest_s:
            os.unlink(path)


@contextmanager
def _reading(path: str, chunk_id: bytes) -> Iterator[None]:
    with translated(path):
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"chunk {chunk_name(chunk_id)} is not stored") from None
