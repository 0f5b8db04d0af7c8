"""Folders of this user for the sockets, locks and logs of background processes. This module makes folders."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from dieselfs.errors import AccessDenied

_NAME_CHARACTERS_MAX = 200


def runtime_folder(environment: Mapping[str, str] = os.environ, user: int | None = None) -> Path:
    """The folder of sockets of a user's daemons on this node: in XDG_RUNTIME_DIR, else in /tmp."""
    own = environment.get("XDG_RUNTIME_DIR")
    return Path(own) / "dieselfs" if own else Path(f"/tmp/dieselfs-{os.getuid() if user is None else user}")


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
    """Make a folder for this user alone, unless it exists. Raises OSError, and AccessDenied as `check_private`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def open_private(path: Path) -> int:
    """A descriptor to append to a log file that only this user can read. Makes its folder. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
