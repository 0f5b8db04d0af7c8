"""Files of snapshots in a private folder: their names, and how they are written. This module writes files."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import BinaryIO, TypeVar

from dieselfs.errors import StorageFull
from dieselfs.records import DatasetRecord
from dieselfs.snapshot.format import SnapshotHeader

_Written = TypeVar("_Written")


def created(path: Path) -> BinaryIO:
    """A new private file. Raises OSError."""
    path.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "w+b")


def write_aside(path: Path, write: Callable[[BinaryIO], _Written]) -> _Written:
    """Write a private file aside, and rename it into place; returns what `write` does. Several threads and processes
    may do so at once: each file is whole, and the last one stays. Raises OSError, and as `write`.
    """
    aside = path.with_suffix(f".{os.getpid()}.{get_ident()}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with created(aside) as file:
            written = write(file)
        aside.rename(path)
        return written
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def put_file(path: Path, content: bytes | memoryview) -> None:
    """As `write_aside`, with this content."""
    write_aside(path, lambda file: file.write(content))


def cannot_store(folder: Path, error: OSError) -> StorageFull:
    return StorageFull(
        f"cannot store the snapshot in {folder}: {error.strerror}; free some space there, then try again"
    )


def state_of(state: DatasetRecord | SnapshotHeader) -> tuple[int, int]:
    return state.updated_ns, state.generation


def file_name(updated_ns: int, generation: int) -> str:
    """Files sort by age. The name has the time, because generations may restart after a loss of the metadata."""
    return f"{updated_ns:016x}-{generation:x}.snapshot"
