"""A local folder that files of a dataset are written to; nothing outside it is changed. This module opens files.

A dataset may be hostile, for example with a link `a -> /etc` and a file `a/passwd`. So every folder is opened from its
parent, never through a link. A file is written aside and renamed, which replaces a link instead of writing through it.
"""

import errno
import os
import secrets
import stat
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dieselfs.errors import DieselfsError, StorageFull, os_errors_as
from dieselfs.names import check_path, printable, split_path
from dieselfs.snapshot.reader import Stat

FOLDERS_OPEN_MAX = 64
"""Folder descriptors that one thread keeps open."""

PERMISSIONS_KEPT = 0o777
"""Set-user-ID and similar bits of a dataset are dropped: a downloaded program runs as its caller."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Destination:
    """One thread's view of the folder. Paths are relative to it, as in a dataset. Close it after use.

    Methods raise OSError for a failure of one path, StorageFull for one that affects all further paths.
    """

    def __init__(self, folder: bytes, permissions: int = PERMISSIONS_KEPT) -> None:
        """Open `folder`, which exists. `permissions`: those that files and folders may have. Raises OSError."""
        self.folder = folder
        self._permissions = permissions & PERMISSIONS_KEPT
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        os.close(self._root)

    def _folder(self, path: bytes) -> int:
        """A descriptor of the folder at `path`; the least recently used one is closed beyond FOLDERS_OPEN_MAX."""
        check_path(path)
        closed: list[bytes] = []
        while path and path not in self._open:
            closed.append(path)
            path, _ = split_path(path)
        descriptor = self._root
        if path:
            descriptor = self._open[path]
            self._open.move_to_end(path)
        for folder in reversed(closed):
            descriptor = os.open(split_path(folder)[1], _FOLDER, dir_fd=descriptor)
            self._open[folder] = descriptor
            if len(self._open) > FOLDERS_OPEN_MAX:
                os.close(self._open.popitem(last=False)[1])
        return descriptor

    def status(self, path: bytes) -> os.stat_result | None:
        """The status of `path`, links not followed; None if it does not exist."""
        folder, name = split_path(check_path(path))
        try:
            return os.stat(name, dir_fd=self._folder(folder), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def make_folder(self, path: bytes) -> None:
        """Create a folder, or make an existing one writable for this user until `finish_folder`."""
        folder, name = split_path(check_path(path))
        with _room(self.folder):
            try:
                os.mkdir(name, 0o700, dir_fd=self._folder(folder))
            except FileExistsError:
                descriptor = self._folder(path)
                mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
                if mode & 0o700 != 0o700:
                    os.fchmod(descriptor, mode | 0o700)

    def finish_folder(self, path: bytes, status: Stat) -> None:
        """Set mode and time of a folder, when all of its content is written."""
        self._finish(self._folder(path), status)

    def set_status(self, path: bytes, status: Stat) -> None:
        """Set mode and time of an existing file or folder, never through a link."""
        folder, name = split_path(check_path(path))
        file = os.open(name, _OLD_FILE, dir_fd=self._folder(folder))
        try:
            self._finish(file, status)
        finally:
            os.close(file)

    def remove(self, path: bytes) -> None:
        """Remove a file, a link, or an empty folder. No error if there is none."""
        folder, name = split_path(check_path(path))
        status = self.status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            if path in self._open:
                os.close(self._open.pop(path))
            os.rmdir(name, dir_fd=self._folder(folder))
        elif status is not None:
            os.unlink(name, dir_fd=self._folder(folder))

    def _finish(self, file: int, status: Stat) -> None:
        os.fchmod(file, status.mode & self._permissions)
        os.utime(file, ns=(status.mtime_ns, status.mtime_ns))

    @contextmanager
    def _replaced(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """A folder and a temporary name in it. The file or link made there replaces `path`; an error removes it."""
        folder, name = split_path(check_path(path))
        descriptor, aside = self._folder(folder), aside_name()
        try:
            yield descriptor, aside
            os.rename(aside, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        except BaseException as error:
            self.discard_file(path, aside)
            _check_room(error, self.folder)
            raise

    def make_link(self, path: bytes, target: bytes, mtime_ns: int) -> None:
        """Create a symbolic link, replacing anything but a folder."""
        with self._replaced(path) as (descriptor, aside):
            os.symlink(target, aside, dir_fd=descriptor)
            os.utime(aside, ns=(mtime_ns, mtime_ns), dir_fd=descriptor, follow_symlinks=False)

    def write_file(self, path: bytes, content: bytes | memoryview, status: Stat) -> None:
        """Write a whole file; on an error the old file stays as it was."""
        with self._replaced(path) as (descriptor, aside):
            file = os.open(aside, _NEW_FILE, 0o600, dir_fd=descriptor)
            try:
                write_at(file, content, 0)
                self._finish(file, status)
            finally:
                os.close(file)

    def begin_file(self, path: bytes) -> bytes:
        """Create an empty file beside `path`, for its extents; returns its name."""
        descriptor, aside = self._folder(split_path(check_path(path))[0]), aside_name()
        with _room(self.folder):
            os.close(os.open(aside, _NEW_FILE, 0o600, dir_fd=descriptor))
        return aside

    def write_extent(self, path: bytes, aside: bytes, content: bytes | memoryview, place: int) -> None:
        """Write bytes to the file that was begun beside `path`, from `place` on."""
        with _room(self.folder), self._begun(path, aside) as file:
            write_at(file, content, place)

    def finish_file(self, path: bytes, aside: bytes, status: Stat) -> None:
        """Set mode and time of the file that was begun beside `path`, and rename it to `path`."""
        with _room(self.folder):
            with self._begun(path, aside) as file:
                self._finish(file, status)
            folder, name = split_path(path)
            descriptor = self._folder(folder)
            os.rename(aside, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)

    @contextmanager
    def _begun(self, path: bytes, aside: bytes) -> Iterator[int]:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(aside, flags, dir_fd=self._folder(split_path(path)[0]))
        try:
            yield file
        finally:
            os.close(file)

    def discard_file(self, path: bytes, aside: bytes) -> None:
        """Remove the file that was begun beside `path`. Does not raise."""
        with suppress(OSError):
            os.unlink(aside, dir_fd=self._folder(split_path(path)[0]))


def write_at(file: int, content: bytes | memoryview, place: int) -> None:
    """Write all of `content` to a descriptor, from the offset `place` on."""
    left = memoryview(content)
    while left:
        written = os.pwrite(file, left, place)
        left, place = left[written:], place + written


def permissions_allowed() -> int:
    """The permissions that the umask of this process leaves to new files."""
    status = Path("/proc/self/status").read_text()  # os.umask could only replace it, for all threads
    return PERMISSIONS_KEPT & ~int(status.partition("\nUmask:")[2].split()[0], 8)


def aside_name() -> bytes:
    """A unique name for a file that is being written."""
    return b".dieselfs-%b.part" % secrets.token_hex(8).encode()


def _check_room(error: BaseException, folder: bytes) -> None:
    """Raise StorageFull if the error means a full disk."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        raise StorageFull(
            f"{printable(folder)}: {os.strerror(error.errno)}: "
            "files written so far are whole; free some space and run the same command again"
        ) from None


@contextmanager
def _room(folder: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _check_room(error, folder)
        raise


def open_destination(folder: bytes, permissions: int = PERMISSIONS_KEPT) -> Destination:
    """Open a folder to write to; it is created if missing. `permissions`: see `Destination`.

    Raises DieselfsError, StorageFull.
    """
    with os_errors_as(DieselfsError, f"cannot write to {printable(folder)}"), _room(folder):
        os.makedirs(folder, exist_ok=True)
        return Destination(folder, permissions)
