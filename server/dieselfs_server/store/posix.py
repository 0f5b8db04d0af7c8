"""The object store in a folder of a local disk, Lustre, or any other file system with durable fsync.

    <root>/<dataset ID, hex>/<name[:3]>/<name[3:5]>/<name>     a chunk; `name` is its ID as printed
    <root>/<dataset ID, hex>/tmp/<name>.<random>               a chunk that is being written
    <root>/records/<record>                                    a record; .<record>.<random> while it is written
    <root>/dropped.<dataset ID, hex>.<random>/                 a dataset that is being removed

Names begin with the time, so folders sort by it. Five characters are four seconds, which bounds the size of a folder,
and a listing since T reads only folders from T on. Paths of chunks are made from IDs only. Several processes, also on
several machines, may use one root. `docs/internals/durability.md` lists the states after a crash.
"""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from dieselfs.chunk.ids import chunk_name, earliest_chunk_id, parse_chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.fields import DATASET_ID_BYTES
from dieselfs.net.address import path_of
from dieselfs_server.store.interface import Buffer
from dieselfs_server.store.marker import missing
from dieselfs_server.store.posix_files import (
    DurableFolders,
    link_new_name,
    names_in,
    open_to_read,
    read_range,
    remove_tree,
    sync_folder,
    translated,
    write_new_file,
)

TEMPORARY_AGE_MAX_S = 3600.0
"""An older temporary file belongs to a writer that died."""

_TEMPORARY = "tmp"
_RECORDS = "records"
_DROPPED = "dropped."
_RECORD_NAME = re.compile(r"[a-z0-9-]{1,200}")
_DATASET_FOLDER = re.compile(rf"[0-9a-f]{{{2 * DATASET_ID_BYTES}}}")


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
            data = read_range(path, offset, length)
        if len(data) != length:
            raise Damaged(
                f"chunk {chunk_name(chunk_id)}: offset {offset}: "
                f"{length} bytes requested, but the object ends at {offset + len(data)}"
            )
        return data

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

    def list_datasets(self) -> Iterator[bytes]:
        for dataset_id in self._dataset_ids():
            if next(self.list_chunks(dataset_id), None) is not None:
                yield dataset_id

    def delete_dataset(self, dataset_id: bytes) -> None:
        """One rename removes all chunks at once; then the space is freed."""
        aside = os.path.join(self._root, f"{_DROPPED}{dataset_id.hex()}.{secrets.token_hex(8)}")
        with translated(self._root):
            with suppress(FileNotFoundError):
                os.rename(self._dataset_path(dataset_id), aside)
            sync_folder(self._root)
            self._folders.forget()
            self._remove_dropped()

    def _write_aside(self, folder: str, name: str, content: bytes) -> str:
        """The path of a new file, synced, which becomes the record `name` of the folder."""
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        self._folders.make(folder)
        write_new_file(temporary, [content])
        return temporary

    def put_record(self, name: str, content: bytes) -> None:
        path = self._record_path(name)
        folder = os.path.dirname(path)
        with translated(path):
            temporary = self._write_aside(folder, name, content)
            try:
                os.replace(temporary, path)
            except OSError:
                os.unlink(temporary)
                raise
            sync_folder(folder)

    def create_record(self, name: str, content: bytes) -> bool:
        path = self._record_path(name)
        folder = os.path.dirname(path)
        with translated(path):
            temporary = self._write_aside(folder, name, content)
            try:
                link_new_name(temporary, path)
                is_new = True
            except FileExistsError:
                is_new = False
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
            sync_folder(folder)  # also if it existed: its creator may have died before this step
        return is_new

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
            if name.startswith(prefix) and _RECORD_NAME.fullmatch(name)
        )

    def delete_record(self, name: str) -> None:
        path = self._record_path(name)
        with translated(path), suppress(FileNotFoundError):
            os.unlink(path)
            sync_folder(os.path.dirname(path))

    def close(self) -> None:
        return

    def _dataset_path(self, dataset_id: bytes) -> str:
        if len(dataset_id) != DATASET_ID_BYTES:
            raise InvalidInput(f"a dataset ID has {DATASET_ID_BYTES} bytes, not {len(dataset_id)}")
        return os.path.join(self._root, dataset_id.hex())

    def _chunk_path(self, dataset_id: bytes, chunk_id: bytes) -> str:
        name = chunk_name(chunk_id)
        return os.path.join(self._dataset_path(dataset_id), name[:3], name[3:5], name)

    def _record_path(self, name: str) -> str:
        if not _RECORD_NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is not a valid name of a record")
        return os.path.join(self._root, _RECORDS, name)

    def _dataset_ids(self) -> list[bytes]:
        return [bytes.fromhex(name) for name in _names(self._root) if _DATASET_FOLDER.fullmatch(name)]

    def _clean_up(self, oldest_s: float) -> None:
        """Finish the work of dead writers: names that may not be durable, temporary files, partly removed datasets."""
        for dataset_id in self._dataset_ids():
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
