"""A local file as a source. This module opens files."""

import errno
import os
import stat
from collections.abc import Callable

from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.names import printable

MARK = "mtime_ns="

_REFUSED = (errno.EACCES, errno.EPERM, errno.ELOOP)
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class LocalFile:
    """An `OpenSource`."""

    def __init__(self, path: bytes, check_allowed: Callable[[bytes], None]) -> None:
        """Open the regular file at `path`. `check_allowed` gets the path of the file that was found, without symbolic
        links: a folder that is replaced by a link meanwhile leads to no other file.

        Raises NotFound, AccessDenied, InvalidInput if it is no regular file, Unavailable.
        """
        self._name = printable(path)
        try:
            # O_PATH opens nothing: neither a pipe nor a device notices, and the kernel knows where the file is.
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                link = f"/proc/self/fd/{found}"
                real = os.readlink(os.fsencode(link))
                check_allowed(real)
                if not stat.S_ISREG(os.fstat(found).st_mode):
                    raise InvalidInput(f"{self._name}: not a regular file")
                self.descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            finally:
                os.close(found)
        except OSError as error:
            raise _translated(self._name, error) from error
        status = os.fstat(self.descriptor)
        self.mtime_ns = status.st_mtime_ns
        self.source = AttachedSource(real, status.st_size, f"{MARK}{self.mtime_ns}")

    def read(self, offset: int, length: int) -> bytes:
        content = bytearray()
        try:
            while len(content) < length:
                part = os.pread(self.descriptor, length - len(content), offset + len(content))
                if not part:
                    raise Damaged(f"{self._name}: it ends at {offset + len(content)}: it has changed")
                if len(part) == length:
                    return part
                content += part
        except OSError as error:
            raise _translated(self._name, error) from error
        return bytes(content)

    def check(self) -> None:
        """Raise Damaged if the file has changed since it was opened."""
        status = os.fstat(self.descriptor)
        if (status.st_size, f"{MARK}{status.st_mtime_ns}") != self.source.version:
            raise Damaged(f"{self._name}: it changed while it was read")

    def close(self) -> None:
        os.close(self.descriptor)


def _translated(name: str, error: OSError) -> NotFound | AccessDenied | Unavailable:
    kind = NotFound if error.errno in _MISSING else AccessDenied if error.errno in _REFUSED else Unavailable
    return kind(f"{name}: {error.strerror}")
