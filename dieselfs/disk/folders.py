"""The folders of a disk tier: whose they are, and who may enter them. This module makes folders and files.

A tier is of one user (mode 0700), or of a group (mode 2770), if its folder belongs to root or to the user of the
process: so nobody else decides who reads what a process stores. Members of a group may replace folders by links, so
files are named by the descriptor of the folder that was entered, and links are not followed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.process.state_dirs import make_private

FORMAT_FOLDER = "dieselfs-1"
"""In the folder that the user names. Another version has another folder, and ignores this one."""

SHARED_MODE = 0o2770
"""Of the folder of a group. Set-group-ID: what is made in it belongs to the group too."""

CHUNK_MODE, SHARED_CHUNK_MODE = 0o600, 0o640
LOCK_MODE, SHARED_LOCK_MODE = 0o600, 0o660

_MISTAKES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP)
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


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
        check_folder(path)
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
