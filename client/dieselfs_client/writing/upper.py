"""The folder of this node that holds what is written through one mount, until it is stored. This module opens files,
and calls the kernel.

    upper/        the upper folder of overlayfs: what programs have written
    work/         overlayfs needs it
    state.json    which dataset, and what of it is stored already
    lock          held while it is stored

Only its user can enter it, so no other user adds to it but through the mount. With `allow_other`, others may exchange
folders in `upper` for links while it is read: each path is opened folder by folder, without links.
"""

import ctypes
import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import finalize

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.errors import AccessDenied, Damaged, NotFound, SourceChanged
from dieselfs.process.state_dirs import check_private, locked, make_private
from dieselfs_client.mount.points.mounting import facts
from dieselfs_client.writing.changes import Done, Found, Key

UPPER, WORK = "upper", "work"
CHANGED = "changed while it was read"
TICK_NS = 20_000_000
"""Two changes of a file or folder within this time may give it the same times."""
_libc = ctypes.CDLL(None, use_errno=True)
_STATE, _LOCK = "state.json", "lock"
FORMAT_VERSION = 2
"""Of `state.json`, in its state, where releases without versions refuse it as an unknown field: they would delete
renamed folders. States without a version are of format 1.
"""
_OPAQUE = "trusted.overlay.opaque", "user.overlay.opaque"
"""The mark of an opaque folder; the second in a user namespace."""
_REDIRECT = "trusted.overlay.redirect"
"""The mark of a renamed folder. In a user namespace there is none: renaming a folder of the base is refused."""
_IN_NAMESPACE = "user.dieselfs.namespace"
"""Of the folder `work`, if a mount in a user namespace has made it."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass
class State:
    """What is known of a write folder.

    - `mountpoint`, `dataset` (`name[/folder]`): of the mount; `server`, `key_file`, `home`: as in its options
    - `base`: the generation that is mounted; None before it was
    - `generation`: the newest of which all changes were made by this mount, or have been seen
    - `tries`: rounds in which a file has changed while it was read, by path
    - `suspects`: inode numbers of files that the disk may not have as they were written
    - `waiting`, `trouble`: entries that the last round has not stored, and why; `stored_s`: when a round stored
      something last, since 1970
    """

    mountpoint: str
    dataset: str
    server: str | None = None
    key_file: str | None = None
    home: str | None = None
    base: int | None = None
    generation: int = 0
    tries: dict[str, int] = field(default_factory=dict)
    suspects: list[int] = field(default_factory=list)
    waiting: int = 0
    trouble: str = ""
    stored_s: float = 0.0


class WriteFolder:
    """One such folder. Its methods raise OSError."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.upper = self.folder / UPPER
        self.work = self.folder / WORK

    @property
    def exists(self) -> bool:
        """Whether something was written there that may not be stored yet."""
        return (self.folder / _STATE).exists()

    def make(self, state: State, root_mode: int, owner: tuple[int, int]) -> None:
        """Make it, empty; `root_mode`, `owner`: of the root of the mount."""
        make_private(self.folder)
        self._clear()
        for place in self.work, self.upper:
            place.mkdir(mode=0o700)
        if facts().is_in_user_namespace:
            with suppress(OSError):  # then overlayfs cannot have its marks there either, and tells it
                os.setxattr(self.work, _IN_NAMESPACE, b"y")
        os.chown(self.upper, *owner)
        self.upper.chmod(root_mode)
        self.save(state, Done())
        _sync(self.folder)
        _sync(self.folder.parent)

    def remove(self) -> None:
        """Remove it; what is in it must be stored."""
        self._clear()
        (self.folder / _LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # other files of the user may be in it
            self.folder.rmdir()

    def _clear(self) -> None:
        (self.folder / _STATE).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            (self.work / "work").chmod(0o700)  # the kernel makes it without rights
        for place in self.work, self.upper:
            if place.is_symlink() or place.exists():
                shutil.rmtree(place)

    def locked(self, timeout_s: float) -> AbstractContextManager[int]:
        """Hold its lock, to store what is there. Raises BlockingIOError after `timeout_s`, and AccessDenied if others
        can enter the folder, or the kernel hides the marks of folders from this process.
        """
        check_private(self.folder)
        if self._are_marks_hidden():
            raise AccessDenied(
                f"{self.folder}: root needs CAP_SYS_ADMIN, outside of user namespaces, to see which folders were "
                "renamed: store it where the mount was, or give that capability to this process"
            )
        return locked(self.folder / _LOCK, timeout_s)

    def _are_marks_hidden(self) -> bool:
        """Whether the kernel hides the marks of folders from this process: those that root has made outside of user
        namespaces.
        """
        if not facts().is_in_user_namespace:
            return os.geteuid() == 0 and not facts().may_mount
        ranges = (line.split()[:2] for line in Path("/proc/self/uid_map").read_text().splitlines())
        return [str(os.geteuid()), "0"] in ranges and not _mark(self.work, _IN_NAMESPACE)

    # -- the state -----------------------------------------------------------------------------------------

    def load(self) -> tuple[State, Done]:
        """Raises NotFound, Damaged, AccessDenied."""
        try:
            check_private(self.folder)
            fields = json.loads((self.folder / _STATE).read_bytes())
            stored = {os.fsencode(path): Key(*key) for path, key in fields.pop("stored").items()}
            deleted = set(map(os.fsencode, fields.pop("deleted")))
            moved, begun = (_encoded(fields.pop(name, {})) for name in ("moved", "begun"))
            state = fields.pop("state")
            if (version := state.pop("format", 1)) > FORMAT_VERSION:
                raise ValueError(
                    f"a newer dieselfs has written it (format {version}, the newest known here is {FORMAT_VERSION}): "
                    "store what is there with that release: dlcmd sync"
                )
            return State(**state), Done(stored, deleted, moved, begun)
        except FileNotFoundError:
            raise NotFound(f"{self.folder}: no mount has written there") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Damaged(f"{self.folder / _STATE}: {error}") from None

    def save(self, state: State, done: Done, is_durable: bool = True) -> None:
        """Replace the state, in one step. `is_durable`: it survives a power cut."""
        content: dict[str, Any] = {
            "state": asdict(state) | {"format": FORMAT_VERSION},
            "stored": {os.fsdecode(path): key for path, key in done.stored.items()},
            "deleted": [os.fsdecode(path) for path in sorted(done.deleted)],
            "moved": _decoded(done.moved),
            "begun": _decoded(done.begun),
        }
        aside = self.folder / f"{_STATE}.new"
        with aside.open("w") as file:
            json.dump(content, file)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        aside.rename(self.folder / _STATE)

    def begin(self, generation: int) -> None:
        """This generation is about to be mounted."""
        state, done = self.load()
        if state.base is None:
            self.save(replace(state, base=generation, generation=generation), done)

    # -- what is written -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write to the disk what programs have written, also into mapped files: what they change there from now on
        gives the file a new time.
        """
        with self.opened(b"", _FOLDER_FLAGS) as folder:
            if _libc.syncfs(folder) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self.upper))

    @contextmanager
    def opened(self, path: bytes, flags: int = _FILE_FLAGS) -> Iterator[int]:
        """A descriptor of an entry in `upper`. The path to it has no link."""
        *above, name = [b".", *filter(None, path.split(b"/"))]
        descriptor = os.open(self.upper, _FOLDER_FLAGS)
        try:
            for part, how in [*((part, _FOLDER_FLAGS) for part in above), (name, flags)]:
                below = os.open(part, how, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def walk(self, times: dict[bytes, int] | None = None) -> Iterator[Found]:
        """All entries, each folder before its content. What is removed meanwhile is left out. `times` gets when each
        folder was changed last, before it was listed.
        """
        pending = [b""]
        while pending:
            above = pending.pop()
            with suppress(FileNotFoundError, NotADirectoryError), self.opened(above, _FOLDER_FLAGS) as folder:
                if times is not None:
                    times[above] = os.fstat(folder).st_ctime_ns
                for name in map(os.fsencode, os.listdir(folder)):
                    path = os.path.join(above, name)
                    with suppress(FileNotFoundError, NotADirectoryError):
                        status = os.lstat(name, dir_fd=folder)
                        is_whiteout = stat.S_ISCHR(status.st_mode) and not status.st_rdev
                        is_folder = stat.S_ISDIR(status.st_mode)
                        marks = self._marks(path) if is_folder else (False, b"")
                        yield Found(path, Key.of(status), is_whiteout, *marks)
                        if is_folder:
                            pending.append(path)

    def is_still(self, times: Mapping[bytes, int], began_ns: int) -> bool:
        """Whether nothing was made, renamed or removed since a walk that began then, and has noted these times."""
        now_ns = time.time_ns() + TICK_NS
        if any(began_ns - TICK_NS <= time_ns <= now_ns for time_ns in times.values()):
            return False  # a change at the same time does not show
        with suppress(FileNotFoundError, NotADirectoryError):
            for path, time_ns in times.items():
                with self.opened(path, _FOLDER_FLAGS) as folder:
                    if os.fstat(folder).st_ctime_ns != time_ns:
                        return False
            return True
        return False

    def _marks(self, path: bytes) -> tuple[bool, bytes]:
        """Whether a folder is opaque, and its redirect."""
        with self.opened(path, _FOLDER_FLAGS) as folder:
            is_opaque = any(_mark(folder, name) == b"y" for name in _OPAQUE)
            return is_opaque, _mark(folder, _REDIRECT)


def _encoded(paths: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(path): os.fsencode(source) for path, source in paths.items()}


def _decoded(paths: Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(path): os.fsdecode(source) for path, source in paths.items()}


def _mark(folder: int | Path, name: str) -> bytes:
    try:
        return os.getxattr(folder, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            raise
        return b""


class UpperEntry:
    """An entry of the upper folder, to upload; an `UploadEntry`. `path`: in the dataset; `key`: of what is uploaded.
    `is_prefix`: a file that grows meanwhile is stored as long as it was when it was opened first.
    """

    is_streamed = False

    def __init__(self, folder: WriteFolder, found: Found, path: bytes, is_prefix: bool = False) -> None:
        """Raises OSError, and SourceChanged if it has another type now."""
        self._folder, self._place, self._is_prefix = folder, found.path, is_prefix
        self.path, self.source = path, os.path.join(os.fsencode(folder.upper), found.path)
        self.key = found.key
        if stat.S_ISREG(found.key.mode):
            with folder.opened(found.path) as file:
                self.key = Key.of(os.fstat(file))
                if is_prefix:  # while it is open, no other file gets its inode number
                    finalize(self, os.close, os.dup(file))
            if not stat.S_ISREG(self.key.mode):
                raise SourceChanged(CHANGED)

    @property
    def mode(self) -> int:
        return self.key.mode

    @property
    def mtime_ns(self) -> int:
        return self.key.mtime_ns

    @property
    def file_bytes(self) -> int:
        return self.key.size if stat.S_ISREG(self.key.mode) else 0

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.key.mode)

    def is_same(self, mode: int, size: int, mtime_ns: int, target: bytes) -> bool:
        return False  # `changes` has compared it

    def load(self) -> None:
        """Nothing: readers open the file."""

    def pack(self, builder: ChunkBuilder) -> None:
        if self.is_folder:
            builder.add_directory(self.path, self.mode, time.time_ns())
        elif stat.S_ISLNK(self.mode):
            above, name = os.path.split(self._place)
            with self._folder.opened(above, _FOLDER_FLAGS) as folder:
                builder.add_symlink(self.path, os.readlink(name, dir_fd=folder), self.mode, self.mtime_ns)
        else:
            content = builder.space(self.key.size)
            with self._folder.opened(self._place) as file:
                length = os.readv(file, [content]) if len(content) else 0
                self._check(file, length == len(content))
            builder.add_file(self.path, content, self.mode, self.mtime_ns)

    def contents(self, ranges: Iterable[tuple[int, int]]) -> Generator[bytes]:
        with self._folder.opened(self._place) as file:
            for place, length in ranges:
                content = os.pread(file, length, place)
                self._check(file, len(content) == length)
                yield content

    def _check(self, file: int, is_complete: bool) -> None:
        """Raise SourceChanged unless what was read is of the file with this key."""
        now = Key.of(os.fstat(file))
        is_longer = self._is_prefix and now.inode == self.key.inode and now.size >= self.key.size
        if not is_complete or (now != self.key and not is_longer):
            raise SourceChanged(CHANGED)
