"""The space of a disk tier: how much of it is used, and what leaves it. This module locks, makes and removes files.

    PATH/dieselfs-1/                  of one user, mode 0700
        space                         the bytes in use; locked (flock) for each change
        users                         locked shared by each process that stores chunks
        DATASET/lock                  locked shared by each process that reads the dataset; its time is the last use
        DATASET/CHUNK                 a payload, and nothing else; immutable
        DATASET/.PROCESS-RANDOM       a payload that is being written, with its final length

The kernel releases locks when a process ends. The first process that opens the folder counts the files again, and
removes those that nobody writes any more. So a crash costs no space for long, and the counter cannot stay wrong.

A chunk that needs room evicts chunks of its dataset that are not in the snapshot any more, if nobody else reads the
dataset; then those of datasets that no process reads, the least recently used dataset first. It evicts no chunk that
a running job may need: an epoch reads each chunk once, so each one would be evicted before it is read again.
"""

import errno
import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dieselfs.disk.direct_io import aligned_bytes
from dieselfs.errors import InvalidInput
from dieselfs.process.state_dirs import locked, make_private

FORMAT_FOLDER = "dieselfs-1"
"""In the folder that the user names. Another version has another folder, and ignores this one."""
LOCK_TIMEOUT_S = 5.0
"""A process waits this long for another one that changes the space; then the chunk is not stored."""
RESCAN_S = 60.0
"""A full tier counts its files again after this time: somebody may have removed some."""
EVICTED_PART = 64
"""An eviction makes room for this part of the size (1/64) at least, so that there are few."""

_MISTAKES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP)
_COUNTER = struct.Struct("<Q")
_DATASET = re.compile("[0-9a-f]{32}")
_LOCK = "lock"
_Current = Callable[[], Container[str]]


def default_size_bytes(folder: Path) -> int:
    """Half of the file system with `folder`, or of that with its first parent that exists. Raises OSError."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    system = os.statvfs(folder)
    return system.f_blocks * system.f_frsize // 2


def check_folder(path: str | os.PathLike[str]) -> Path:
    """The tier's own folder below `path`, which is made. Raises AccessDenied if it belongs to another user or is open
    to others; OSError.
    """
    top = Path(path).expanduser()
    top.mkdir(mode=0o700, exist_ok=True)
    folder = top / FORMAT_FOLDER
    make_private(folder)
    return folder


def check_usable(path: str) -> None:
    """Make the folder of a tier. Raises InvalidInput and AccessDenied for one that cannot be used; not for a disk that
    fails, which daemons do without.
    """
    try:
        check_folder(path)
    except OSError as error:
        if error.errno in _MISTAKES:
            raise InvalidInput(
                f"--disk {path}: {error.strerror}: give a folder of your own on a local disk; it is made if the folder "
                "around it exists"
            ) from None


class DatasetHold:
    """The folder of a dataset, held by this process: nothing of it is evicted by others. Raises OSError."""

    def __init__(self, folder: Path, dataset: str) -> None:
        """`folder`: of the tier."""
        self.name = dataset
        self.folder = folder / dataset
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = os.open(
            self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        os.utime(self._descriptor)
        with suppress(BlockingIOError):  # it is being evicted at the moment, which does no harm
            self._share()

    def _share(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process holds the dataset; none can until the end of the block. Called under the lock of
        the space, which all need that ask the same.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            with suppress(BlockingIOError):
                self._share()

    def close(self) -> None:
        """A forked child closes its copy, and the parent keeps the lock."""
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is being written. The writer closes the descriptor."""

    descriptor: int
    path: Path
    length_bytes: int


class DiskSpace:
    """Used from one thread. Methods raise OSError, and BlockingIOError if another process has the lock for long."""

    def __init__(
        self, folder: Path, size_bytes: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`folder`: `check_folder`; `size_bytes`: the limit for all processes, 0 for `default_size_bytes`."""
        self.folder = folder
        self.size_bytes = size_bytes or default_size_bytes(folder)
        self.used_bytes = 0
        """At the last change by this process."""
        self.evicted_chunks = 0
        self._clock = clock
        self._scanned_s = float("-inf")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._users = os.open(folder / "users", flags, 0o600)
        try:
            with self._changed():
                if self._is_alone():
                    self._scan(is_alone=True)
                self._make_room(0)
                fcntl.flock(self._users, fcntl.LOCK_SH)  # all who lock it have the lock of the space
        except BaseException:
            os.close(self._users)
            raise

    def close(self) -> None:
        """A forked child closes its copy."""
        os.close(self._users)

    def create(self, dataset: DatasetHold, length_bytes: int, current: _Current) -> NewFile | None:
        """A new file for a chunk of this length, whose room is taken; None if there is no room. `current`: the chunks
        of the dataset's snapshot, by name.
        """
        length_bytes = aligned_bytes(length_bytes)
        with self._changed():
            if not self._make_room(length_bytes, dataset, current):
                if self._clock() - self._scanned_s < RESCAN_S:
                    return None
                self._scan(is_alone=False)
                if not self._make_room(length_bytes, dataset, current):
                    return None
            path = dataset.folder / f".{os.getpid()}-{os.urandom(8).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            try:
                os.ftruncate(descriptor, length_bytes)  # so that a scan counts all of it
            except BaseException:
                os.close(descriptor)
                path.unlink()
                raise
            self.used_bytes += length_bytes
            return NewFile(descriptor, path, length_bytes)

    def publish(self, new: NewFile, name: str) -> None:
        """Give a written file its name. If another process was faster, its file stays, and this one is removed."""
        final = new.path.parent / name
        with self._changed():
            if final.exists():
                self._remove(new.path, new.length_bytes)
            else:
                os.rename(new.path, final)

    def abandon(self, new: NewFile) -> None:
        """Remove a file that could not be written."""
        with self._changed():
            self._remove(new.path, new.length_bytes)

    def remove(self, path: Path) -> None:
        """Remove the file of a chunk, if it is there."""
        with self._changed(), suppress(FileNotFoundError):
            self._remove(path, aligned_bytes(path.lstat().st_size))

    # -- under the lock ------------------------------------------------------------------------------------

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Hold the lock; `used_bytes` is read before the block, and written after it, also after an error."""
        with locked(self.folder / "space", LOCK_TIMEOUT_S) as descriptor:
            content = os.pread(descriptor, _COUNTER.size, 0)
            if len(content) == _COUNTER.size:
                (self.used_bytes,) = _COUNTER.unpack(content)
            try:
                yield
            finally:
                os.pwrite(descriptor, _COUNTER.pack(max(self.used_bytes, 0)), 0)

    def _is_alone(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _scan(self, is_alone: bool) -> None:
        """Count the files again. `is_alone`: files that are being written belong to processes that have died."""
        self.used_bytes = 0
        self._scanned_s = self._clock()
        for dataset in self._datasets():
            for entry in os.scandir(dataset):
                if entry.name == _LOCK:
                    continue
                if is_alone and entry.name.startswith("."):
                    os.unlink(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    self.used_bytes += aligned_bytes(entry.stat(follow_symlinks=False).st_size)

    def _datasets(self) -> list[Path]:
        """The least recently used first."""
        found = []
        for entry in os.scandir(self.folder):
            if _DATASET.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                used_s = float("-inf")
                with suppress(OSError):
                    used_s = os.lstat(os.path.join(entry.path, _LOCK)).st_mtime
                found.append((used_s, entry.name))
        return [self.folder / name for _, name in sorted(found)]

    def _make_room(
        self, length_bytes: int, dataset: DatasetHold | None = None, current: _Current = frozenset
    ) -> bool:
        """Evict until there is room for a chunk of `dataset`; whether there is."""
        limit_bytes = self.size_bytes - length_bytes
        if self.used_bytes > limit_bytes >= 0:
            enough_bytes = min(limit_bytes, self.size_bytes - self.size_bytes // EVICTED_PART)
            for _ in self._evictions(dataset, current):
                self.evicted_chunks += 1
                if self.used_bytes <= enough_bytes:
                    break
        return self.used_bytes <= limit_bytes

    def _evictions(self, own: DatasetHold | None, current: _Current) -> Iterator[None]:
        """Evict one chunk after the other, and pause after each."""
        if own is not None:
            with own.alone() as is_alone:
                if is_alone:
                    yield from self._removals(own.folder, current())
        for folder in self._datasets():
            if own is None or folder != own.folder:
                with suppress(OSError), _held_exclusively(folder / _LOCK):
                    yield from self._removals(folder, ())

    def _removals(self, folder: Path, kept: Container[str]) -> Iterator[None]:
        for entry in list(os.scandir(folder)):
            if entry.name != _LOCK and not entry.name.startswith(".") and entry.name not in kept:
                with suppress(FileNotFoundError):
                    self._remove(Path(entry.path), aligned_bytes(entry.stat(follow_symlinks=False).st_size))
                    yield

    def _remove(self, path: Path, length_bytes: int) -> None:
        path.unlink()
        self.used_bytes -= length_bytes


@contextmanager
def _held_exclusively(lock: Path) -> Iterator[None]:
    """Raises BlockingIOError if a process holds the dataset; OSError."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
