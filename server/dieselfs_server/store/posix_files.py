"""Files and folders that survive a power cut: written under a temporary name, and durable before a reply.

`docs/internals/durability.md` explains the order of the steps. A failed fsync is never repeated, because the kernel may
have dropped the pages and report success the second time. The file is removed, and the writer writes its content again.
All paths are absolute. Functions raise OSError; `translated` turns it into a DieselfsError.
"""

import ctypes
import errno
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from dieselfs.errors import Damaged, StorageFull, Unavailable
from dieselfs_server.store.interface import Buffer

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
