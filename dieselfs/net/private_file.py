"""Reads files with secrets, and notices when files change. This module opens files.

As with `ssh`, a secret that other users can read is refused, and one that belongs to another user than this process or
root: that user knows it, and may change it. As with PostgreSQL, root may let a group read it, in which this process is:
Kubernetes and Docker give secrets to programs of ordinary users so.
"""

import os
import stat
from pathlib import Path

from dieselfs.errors import AccessDenied, InvalidInput, os_errors_as


def read_private_file(path: str | os.PathLike[str], bytes_max: int, what: str) -> bytes:
    """Up to `bytes_max` bytes of a private file.

    Raises AccessDenied, which begins with `what` and the path, if it cannot be read, is no regular file, or is open to
    others.
    """
    source = Path(path).expanduser()
    with os_errors_as(AccessDenied, f"{what} {source}"):
        # O_NONBLOCK: a FIFO would block.
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise AccessDenied(f"{what} {source} is not a regular file")
            if stat.S_IMODE(status.st_mode) & ~(0o740 if status.st_uid == 0 != os.geteuid() else 0o700):
                raise AccessDenied(f"{what} {source} can be read by others: chmod 600 {source}")
            if status.st_uid not in (os.geteuid(), 0):
                raise AccessDenied(
                    f"{what} {source} belongs to another user (user ID {status.st_uid}): copy it, with mode 600"
                )
            return file.read(bytes_max)


def read_private_text(
    path: str | os.PathLike[str], bytes_max: int, what: str, encoding: str = "utf-8"
) -> str:
    """The text in a private file, without white space around it. Raises InvalidInput, also for none or a longer one."""
    try:
        text = read_private_file(path, bytes_max + 1, what).decode(encoding).strip()
    except AccessDenied as error:
        raise InvalidInput(str(error)) from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{what} {path}: not text in {encoding}") from None
    if not 0 < len(text) <= bytes_max:
        raise InvalidInput(f"{what} {path}: empty, or longer than {bytes_max} bytes")
    return text


def write_private_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file, or create it, with mode 0600; atomic and durable. Raises OSError."""
    final = Path(path).expanduser()
    target = final.parent / f".{final.name}.{os.urandom(8).hex()}"
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(target, final)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    folder = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def file_version(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """Changes with each change of the file; empty if there is none."""
    try:
        status = os.stat(os.path.expanduser(path))
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
