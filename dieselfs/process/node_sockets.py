"""The sockets of the daemons of all users of this node, for the tools of root. This module opens the folders of users.

A user may change the own folders at any time. So each folder is opened below the one before, checked while it is open,
and never looked up again: no symbolic link is followed, and nothing in a file system of FUSE is touched, which could
block a caller for ever.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dieselfs.process.state_dirs import runtime_folder

RUNTIME_FOLDERS = (
    "/run/dieselfs",
    "/run/dieselfs-jobs/*/dieselfs",
    "/run/user/*/dieselfs",
    "/tmp/dieselfs-*",
)
"""Where `runtime_folder` is: of the unit of a server, of the jobs of Slurm, of logins, and of others."""
SOCKETS_MAX = 256
"""In one folder. Those above are left out."""
METRICS = "metrics"
"""The folder in a runtime folder for the sockets of daemons that tell their metrics."""

_SOCKET = re.compile(r"([1-9]\d{0,9})\.sock", re.ASCII)
_MOUNT_OF_FILE = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


class DaemonSocket(NamedTuple):
    """Where a daemon listens. `user`: the owner of the folder; `path`: as this process can reach it, until the next one
    is taken.
    """

    process: int
    user: int
    path: str


def is_for_all_users() -> bool:
    """Whether the tools of this process see the daemons of all users: those of root, unless XDG_RUNTIME_DIR is a folder
    that no system sets. Its daemons are then apart.
    """
    return os.geteuid() == 0 and any(runtime_folder().match(pattern) for pattern in RUNTIME_FOLDERS)


def node_sockets(patterns: Sequence[str] = RUNTIME_FOLDERS, root: Path = Path("/")) -> Iterator[DaemonSocket]:
    """All of them, by folder and process ID. A folder that others than its owner may change or enter is left out."""
    for pattern in patterns:
        top = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            yield from _below(top, [*pattern.strip("/").split("/"), METRICS])
        finally:
            os.close(top)


def _below(above: int, parts: Sequence[str]) -> Iterator[DaemonSocket]:
    if not parts:
        yield from _sockets(above)
        return
    for name in _names(above, parts[0]):
        with suppress(OSError), _opened(name, os.O_DIRECTORY, above) as folder:
            if not _is_fuse(folder) and _may_be_entered(above, name, folder):
                yield from _below(folder, parts[1:])


def _names(folder: int, pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    with _listed(folder) as entries:
        return sorted(entry.name for entry in entries if fnmatchcase(entry.name, pattern))


@contextmanager
def _listed(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with closing(os.scandir(descriptor)) as entries:
            yield entries
    finally:
        os.close(descriptor)


@contextmanager
def _opened(name: str, flags: int, above: int) -> Iterator[int]:
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _may_be_entered(above: int, name: str, folder: int) -> bool:
    """Whether a folder is of the owner of the one above, or root made that; and in a folder that all may write, whether
    it has the name of its owner.
    """
    parent, status = os.fstat(above), os.fstat(folder)
    if parent.st_mode & stat.S_IWOTH and name != f"dieselfs-{status.st_uid}":
        return False
    return parent.st_uid in (0, status.st_uid)


def _is_fuse(descriptor: int) -> bool:
    """Whether an open file is in a file system of FUSE, or in one that is no longer mounted. Asks the kernel alone."""
    found = _MOUNT_OF_FILE.search(Path(f"/proc/self/fdinfo/{descriptor}").read_bytes())
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
        mount, _, filesystem = line.partition(b" - ")
        if found is not None and mount.split(b" ", 1)[0] == found[1]:
            return filesystem.startswith(b"fuse")
    return True


def _sockets(folder: int) -> Iterator[DaemonSocket]:
    status = os.fstat(folder)
    if status.st_mode & 0o077:
        return
    with _listed(folder) as entries:
        names = [match for entry in islice(entries, SOCKETS_MAX) if (match := _SOCKET.fullmatch(entry.name))]
    for match in sorted(names, key=lambda match: int(match[1])):
        with suppress(OSError), _opened(match[0], 0, folder) as descriptor:
            found = os.fstat(descriptor)
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == status.st_uid:
                yield DaemonSocket(int(match[1]), status.st_uid, f"/proc/self/fd/{descriptor}")
