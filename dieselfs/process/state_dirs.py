"""Folders of this user for the sockets, locks and logs of background processes, and locks on files in them. This module
makes folders and locks files.
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dieselfs.errors import AccessDenied

_NAME_CHARACTERS_MAX = 200


def runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of sockets of a user's daemons on this node: in XDG_RUNTIME_DIR, else in /tmp."""
    own = environment.get("XDG_RUNTIME_DIR")
    return Path(own) / "dieselfs" if own else Path(f"/tmp/dieselfs-{os.getuid()}")


def log_path(*words: str) -> Path:
    """The log file of a daemon, as `mount-mnt-imagenet.log`. Long words are cut at the start."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    length = _NAME_CHARACTERS_MAX // len(words)
    return state / "dieselfs" / f"{'-'.join(word[-length:] for word in words)}.log"


def check_private(folder: Path) -> None:
    """Raise AccessDenied unless a folder belongs to this user and no other user can enter it; OSError."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise AccessDenied(f"{folder} is not a folder that only this user can enter (mode 0700)")


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, and those above it that are missing, unless it exists. Raises OSError, and
    AccessDenied as `check_private`.
    """
    for above in reversed(folder.parents):  # `parents=True` would let all users enter them
        if not above.exists():
            above.mkdir(mode=0o700, exist_ok=True)
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
