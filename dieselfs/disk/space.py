"""The space of a disk tier: how much of it is used, and what leaves it. This module locks, makes and removes files.

    PATH/dieselfs-1/                  of one user, mode 0700, or of a group, mode 2770
        space                         the bytes in use; locked (flock) for each change
        users                         locked shared by each process that stores chunks
        DATASET/lock                  locked shared by each process that reads the dataset; its time is the last use,
                                      its content the name of the dataset
        DATASET/CHUNK                 a payload, plain or packed, and nothing else; immutable
        DATASET/.PROCESS-RANDOM       a payload that is being written, with its final length

The kernel releases locks when a process ends. The first process that opens the folder counts the files again, and
removes those that nobody writes any more. So a crash costs no space for long, and the counter cannot stay wrong.

A chunk that needs room evicts chunks of its dataset that are not in the snapshot any more, if nobody else reads the
dataset; then those of datasets that no process reads, the least recently used dataset first. It evicts no chunk that a
running job may need: an epoch reads each chunk once, so each one would be evicted before it is read again.

A tier is of one user (mode 0700), or of a group (mode 2770), if its folder belongs to root or to the user of the
process: so nobody else decides who reads what a process stores. Members of a group may replace folders by links, so
files are named by the descriptor of the folder that was entered, and links are not followed.
"""

import errno
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.limits import NAME_BYTES_MAX
from dieselfs.process.state_dirs import is_at, locked, make_private

ALIGNMENT_BYTES = 4096
"""Of offsets, lengths and memory of direct reads and writes; a multiple of the sector of all usual disks."""

FORMAT_FOLDER = "dieselfs-1"
"""In the folder that the user names. Another version has another folder, and ignores this one."""

SHARED_MODE = 0o2770
"""Of the folder of a group. Set-group-ID: what is made in it belongs to the group too."""

CHUNK_MODE, SHARED_CHUNK_MODE = 0o600, 0o640
LOCK_MODE, SHARED_LOCK_MODE = 0o600, 0o660

_MISTAKES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EROFS)
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def aligned_bytes(length_bytes: int) -> int:
    """The length of whole sectors that have this many bytes."""
    return -(-length_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def default_size_bytes(folder: Path) -> int:
    """Half of the file system with `folder`, or of that with its first parent that exists. Raises OSError."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    system = os.statvfs(folder)
    return system.f_blocks * system.f_frsize // 2


def check_folder(path: str | os.PathLike[str]) -> Path:
    """The tier's own folder below `path`, which is made. Raises AccessDenied if it belongs to another user or is open
    to others than a group; OSError.
    """
    top = Path(path).expanduser()
    top.mkdir(mode=0o700, exist_ok=True)
    folder = top / FORMAT_FOLDER
    try:
        if not _is_of_a_group(folder):
            make_private(folder)
        elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "you are not in its group", str(folder))
    except AccessDenied as error:
        raise AccessDenied(f"{error}, nor one of root for a group (mode 2770)") from None
    return folder


def check_usable(path: str) -> None:
    """Make the folder of a tier. Raises InvalidInput and AccessDenied for one that cannot be used; not for a disk that
    fails, which daemons do without.
    """
    try:
        if os.statvfs(check_folder(path)).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    except OSError as error:
        if error.errno in _MISTAKES:
            raise InvalidInput(
                f"--disk {path}: {error.strerror}: give a folder of your own on a local disk; it is made if the folder "
                "around it exists"
            ) from None


def _is_of_a_group(folder: Path) -> bool:
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and stat.S_IMODE(status.st_mode) == SHARED_MODE
        and status.st_uid in (0, os.getuid())
    )


def is_shared(folder: Path) -> bool:
    """Whether a checked folder, or one in it, is that of a group."""
    return bool(os.stat(folder).st_mode & stat.S_IRGRP)


def make_folder(folder: Path) -> None:
    """Make a folder in one that was checked, for the same users, unless it exists."""
    if folder.exists():
        return
    if not is_shared(folder.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
        return
    made = folder.with_name(f".{_unique()}")
    made.mkdir(mode=0o700)
    with entered(made) as place:  # a member of the group may have put a link in its place
        place.chmod(SHARED_MODE)
    try:
        made.rename(folder)  # with its mode at once, or another user could not enter it
    except OSError:  # another process was faster
        made.rmdir()


@contextmanager
def entered(folder: Path) -> Iterator[Path]:
    """A name of a folder for the time of the block, which is that of this very folder whatever happens to its path."""
    descriptor = open_folder(folder)
    try:
        yield path_of(descriptor)
    finally:
        os.close(descriptor)


def open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)


def path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def open_lock(path: Path) -> int:
    """A descriptor of a file to lock, which is made for all users of its folder."""
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, _LOCK_FLAGS)
        made = path.with_name(f".{_unique()}")
        descriptor = os.open(made, _LOCK_FLAGS | os.O_CREAT | os.O_EXCL, LOCK_MODE)
        try:
            if is_shared(path.parent):
                os.fchmod(descriptor, SHARED_LOCK_MODE)
            with suppress(FileExistsError):
                os.link(made, path)
        finally:
            os.close(descriptor)
            os.unlink(made)


def create_chunk(folder: Path) -> tuple[int, Path]:
    """A new file to be written, which others do not read yet: its descriptor and its path."""
    path = folder / f".{_unique()}"
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, CHUNK_MODE
    )
    if is_shared(folder):
        os.fchmod(descriptor, SHARED_CHUNK_MODE)
    return descriptor, path


def _unique() -> str:
    return f"{os.getpid()}-{os.urandom(8).hex()}"


LOCK_TIMEOUT_S = 5.0
"""A process waits this long for another one that changes the space; then the chunk is not stored."""
RESCAN_S = 60.0
"""A full tier counts its files again after this time: somebody may have removed some."""
EVICTED_PART = 64
"""An eviction makes room for this part of the size (1/64) at least, so that there are few."""

_COUNTER = struct.Struct("<Q")
_DATASET = re.compile("[0-9a-f]{32}")
_LOCK = "lock"
_Current = Callable[[], Container[str]]


@dataclass(frozen=True, slots=True)
class KeptDataset:
    """What a tier has of a dataset. `name`: when it was used last; empty if that is not known."""

    dataset: str
    name: str
    chunks: int
    size_bytes: int
    used_ns: int
    is_in_use: bool


class DatasetHold:
    """The folder of a dataset, held by this process: nothing of it is evicted by others. Raises OSError."""

    def __init__(self, folder: Path, dataset: str, name: str = "", parents: int | None = None) -> None:
        """`folder`: of the tier; `dataset`: its ID; `name`: for those who list the tier. `parents`: the lock that
        the parent holds, with which this process is one for `alone`.
        """
        self.name = dataset
        self._path = folder / dataset
        make_folder(self._path)
        self._folder = open_folder(self._path)
        self.folder = path_of(self._folder)
        with ExitStack() as unless_held:
            unless_held.callback(os.close, self._folder)
            self.descriptor = open_lock(self.folder / _LOCK)
            unless_held.callback(os.close, self.descriptor)
            if parents is not None and os.path.samestat(os.fstat(parents), os.fstat(self.descriptor)):
                os.dup2(parents, self.descriptor, inheritable=False)
                unless_held.pop_all()
                return
            with suppress(OSError):  # a full disk has no room for it
                self._note_name(name.encode())
            os.utime(self.descriptor)
            with suppress(BlockingIOError):  # it is being evicted at the moment, which does no harm
                self._share()
            unless_held.pop_all()

    def _note_name(self, content: bytes) -> None:
        if content and os.pread(self.descriptor, NAME_BYTES_MAX, 0) != content:
            os.pwrite(self.descriptor, content, 0)
            os.ftruncate(self.descriptor, len(content))

    def check(self) -> None:
        """Raise FileNotFoundError if somebody has removed the folder, or put another one in its place."""
        if not is_at(self._path, self._folder):
            raise FileNotFoundError(errno.ENOENT, "its folder was removed", str(self._path))

    def _share(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process holds the dataset; none can until the end of the block. Called under the lock of
        the space, which all need that ask the same.
        """
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            with suppress(BlockingIOError):
                self._share()

    def close(self) -> None:
        """A forked child closes its copy, and the parent keeps the lock."""
        os.close(self.descriptor)
        os.close(self._folder)


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
        self._users = open_lock(folder / "users")
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
            dataset.check()
            descriptor, path = create_chunk(dataset.folder)
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

    def kept(self) -> list[KeptDataset]:
        """The datasets with chunks in the tier, the least recently used first."""
        found = []
        with self._changed():
            for folder in self._datasets():
                with suppress(OSError):  # it cannot be entered, or was removed
                    found.append(self._kept(folder))
        return [one for one in found if one.chunks]

    def clear(self, dataset: str) -> bool:
        """Remove the chunks of a dataset; whether that was possible: no process reads it."""
        try:
            with self._changed(), _held_exclusively(self.folder / dataset) as folder:
                for _ in self._removals(folder, ()):
                    pass
        except BlockingIOError:
            return False
        return True

    # -- under the lock ------------------------------------------------------------------------------------

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Hold the lock; `used_bytes` is read before the block, and written after it, also after an error."""
        with locked(self.folder / "space", LOCK_TIMEOUT_S, open_lock) as descriptor:
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
            with suppress(OSError), entered(dataset) as folder:
                for entry in os.scandir(folder):
                    if entry.name == _LOCK:
                        continue
                    with suppress(OSError):
                        if is_alone and entry.name.startswith("."):
                            os.unlink(entry.path)
                            continue
                        self.used_bytes += aligned_bytes(entry.stat(follow_symlinks=False).st_size)

    def _kept(self, path: Path) -> KeptDataset:
        with entered(path) as folder:
            sizes = [
                aligned_bytes(entry.stat(follow_symlinks=False).st_size)
                for entry in os.scandir(folder)
                if entry.name != _LOCK and not entry.name.startswith(".")
            ]
            name, used_ns, is_in_use = b"", 0, False
            with suppress(OSError):
                descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    name = os.pread(descriptor, NAME_BYTES_MAX, 0)
                    used_ns = os.fstat(descriptor).st_mtime_ns
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    is_in_use = True
                finally:
                    os.close(descriptor)
        return KeptDataset(
            path.name, name.decode("ascii", "replace"), len(sizes), sum(sizes), used_ns, is_in_use
        )

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
            if own is None or folder.name != own.name:
                with suppress(OSError), _held_exclusively(folder) as found:
                    yield from self._removals(found, ())

    def _removals(self, folder: Path, kept: Container[str]) -> Iterator[None]:
        for entry in list(os.scandir(folder)):
            is_chunk = entry.name != _LOCK and not entry.name.startswith(".")
            if is_chunk and entry.name not in kept and not entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    self._remove(Path(entry.path), aligned_bytes(entry.stat(follow_symlinks=False).st_size))
                    yield

    def _remove(self, path: Path, length_bytes: int) -> None:
        path.unlink()
        self.used_bytes -= length_bytes


@contextmanager
def _held_exclusively(path: Path) -> Iterator[Path]:
    """Hold the folder of a dataset, and enter it. Raises BlockingIOError if a process holds it; OSError."""
    with entered(path) as folder:
        descriptor = open_lock(folder / _LOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        finally:
            os.close(descriptor)
