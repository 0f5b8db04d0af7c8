"""Folders of this user for the sockets, locks and logs of background processes, and locks on files in them. This module
makes folders and locks files.
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from dieselfs.errors import AccessDenied

_NAME_CHARACTERS_MAX = 200
_SHARED, _LOGINS = Path("/tmp"), Path("/run/user")


def runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of sockets of a user's daemons on this node: in XDG_RUNTIME_DIR, else in /tmp.

    If another user has made that in /tmp, it is in /run/user, else a random one in /tmp, which is made then. Root in a
    user namespace is another user than root outside.
    """
    own = environment.get("XDG_RUNTIME_DIR")
    if own:
        return Path(own) / "dieselfs"
    shared, login = _SHARED / f"dieselfs-{os.getuid()}", _LOGINS / str(os.getuid())
    if _owner(shared) in (None, os.getuid()):
        return shared
    if _owner(login) == os.getuid():
        return login / "dieselfs"
    with suppress(OSError, AccessDenied):  # then `make_private` refuses the first
        return _random_folder(_state_folder(environment) / f"runtime-{os.uname().nodename}")
    return shared


def _random_folder(link: Path) -> Path:
    """The folder to which the private `link` leads, so that all processes of this user have the same."""
    while True:
        with suppress(FileNotFoundError):
            folder = Path(os.readlink(link))
            if _owner(folder) == os.getuid():
                return folder
            link.unlink()  # since the node was started again, it is gone, or another user's
        make_private(link.parent)
        folder = Path(mkdtemp(prefix=f"dieselfs-{os.getuid()}-", dir=_SHARED))
        try:
            link.symlink_to(folder)
        except FileExistsError:  # another process was first
            folder.rmdir()


def _owner(path: Path) -> int | None:
    """Whose it is, of a link the link itself; None if there is nothing."""
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def _state_folder(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "dieselfs"


def log_path(*words: str) -> Path:
    """The log file of a daemon, as `mount-mnt-imagenet.log`. Long words are cut at the start."""
    length = _NAME_CHARACTERS_MAX // len(words)
    return _state_folder(os.environ) / f"{'-'.join(word[-length:] for word in words)}.log"


def writes_path(place: str) -> Path:
    """The folder for what is written through the mount at `place` (resolved), unless the user names one."""
    return _state_folder(os.environ) / "writes" / place.strip("/").replace("/", "-")[-_NAME_CHARACTERS_MAX:]


def check_private(folder: Path) -> None:
    """Raise AccessDenied unless a folder belongs to this user and no other user can enter it; OSError."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise AccessDenied(f"{folder} is not a folder that only this user can enter (mode 0700)")


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, and those above it that are missing, unless it exists. Raises OSError, and
    AccessDenied as `check_private`, and if another user has made one of those in a folder that all may write.
    """
    for above in reversed(folder.parents):  # `parents=True` would let all users enter them
        if not above.exists():
            above.mkdir(mode=0o700, exist_ok=True)
        if above.parent.stat().st_mode & stat.S_IWOTH and _owner(above) not in (0, os.getuid()):
            raise AccessDenied(
                f"{above} belongs to another user, who can exchange what is in it; name a folder of your own, for "
                "sockets with XDG_RUNTIME_DIR"
            )
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)


def open_private(path: Path) -> int:
    """A descriptor to append to a log file that only this user can read. Makes its folder. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


_POLL_S = 0.02


def _open_own(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


@contextmanager
def locked(path: Path, timeout_s: float = 0.0, opened: Callable[[Path], int] = _open_own) -> Iterator[int]:
    """Hold the lock of the file at `path` until the end of the block; yields its descriptor.

    The kernel releases the lock when the process ends. The holder may remove the file before it releases the lock: a
    process that waited finds another file at the path, or none, and retries.
    `opened` makes the file if there is none: by default, for this user alone. Raises BlockingIOError if another process
    has the lock after `timeout_s`; OSError.
    """
    end_s = time.monotonic() + timeout_s
    while (descriptor := try_lock(path, opened)) is None:
        if time.monotonic() >= end_s:
            raise BlockingIOError(f"another process has locked {path}")
        time.sleep(_POLL_S)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(path: Path, opened: Callable[[Path], int]) -> int | None:
    """A descriptor of the file or folder at `path`, locked while it, or a copy of it, is open; None if another process
    has the lock. Raises OSError as `opened`.
    """
    while True:
        descriptor = opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the last holder has just removed the file


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one at `path`: it may have been removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
