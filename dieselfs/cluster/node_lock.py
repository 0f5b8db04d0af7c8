"""Which processes of a node take part in a job, and which of them is the master. This module locks a file.

Each locks single bytes of one file, and never reads or writes it:

    byte 0            exclusive   the master
    1 + rank          shared      candidates: daemons, which may become the master
    2^32 + rank       shared      users: programs that read with the library
    2^33              exclusive   the daemon without a mount, of which a node has one (`dlcmd cache`)
    2^33 + 1          shared      all that have the file open

The kernel releases locks when a process ends: nothing has to be renewed. The last daemon to end removes the file. It
locks all bytes first, so no other process uses the file. A process that has just opened it checks, once it has its
lock, whether the file is still there, and else opens the next one.
"""

import fcntl
import os
import struct
import time
from contextlib import suppress
from pathlib import Path

from dieselfs.cluster.member import RANK_MAX
from dieselfs.errors import Unavailable, os_errors_as
from dieselfs.process.state_dirs import is_at, make_private

NODE_LOCK_TIMEOUT_S = 5.0
"""Wait for a lock file that another process is removing: instant, unless that process is stopped."""

_MASTER = 0
_CANDIDATES = 1
_USERS = 1 << 32
_CACHE = 1 << 33
_PRESENT = _CACHE + 1
_RANKS = RANK_MAX + 1
assert _CANDIDATES + _RANKS <= _USERS and _USERS + _RANKS <= _CACHE

_PAUSE_S = 0.01
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, process


def lock_path(socket: Path) -> Path:
    """The file beside the socket of a job's node master (`job_socket_path`)."""
    return socket.with_suffix(".job")


def start_path(path: Path) -> Path:
    """The file that programs lock to start a daemon; `path`: of the socket, or of the lock."""
    return path.with_suffix(".start")


class NodeLock:
    """The locks of one process. They belong to the open file: a forked child has them too, until both have ended.

    The `has_*` methods see the locks of other processes, and of other `NodeLock`s of this process.
    """

    def __init__(self, path: Path) -> None:
        """`path`: see `lock_path`. Makes its folder, private to this user. Waits NODE_LOCK_TIMEOUT_S at most while
        another process removes the file.

        Raises Unavailable if the file cannot be used, AccessDenied if other users can enter its folder.
        """
        self._path = path
        with os_errors_as(Unavailable, f"the lock of the job, {path}"):
            make_private(path.parent)
            end_s = time.monotonic() + NODE_LOCK_TIMEOUT_S
            while time.monotonic() < end_s:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                if self._try_lock(fcntl.F_RDLCK, _PRESENT) and is_at(path, self._file):
                    return
                os.close(self._file)  # another process is removing it
                time.sleep(_PAUSE_S)
        raise Unavailable(
            f"the lock of the job, {path}: another process has not finished removing it in {NODE_LOCK_TIMEOUT_S:g} s"
        )

    def close(self) -> None:
        """Release all locks. May be called again."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def clear(self) -> None:
        """Release all locks. If no other process has the file open, remove it and the file of `start_path`.

        Not for a process whose forked child still uses it.
        """
        if self._file < 0:
            return
        with suppress(OSError):  # then it stays
            self._try_lock(fcntl.F_UNLCK, _CACHE, fcntl.F_SETLK)
            if self._try_lock(fcntl.F_WRLCK, 0, length=0) and is_at(self._path, self._file):
                start_path(self._path).unlink(missing_ok=True)
                self._path.unlink()
        self.close()

    # -- the role of this process ------------------------------------------------------------------------

    def be_candidate(self, rank: int) -> None:
        self._try_lock(fcntl.F_RDLCK, _CANDIDATES + rank)  # shared: always granted

    def be_user(self, rank: int) -> None:
        self._try_lock(fcntl.F_RDLCK, _USERS + rank)

    def try_lead(self) -> bool:
        """Become the master, unless there is one."""
        return self._try_lock(fcntl.F_WRLCK, _MASTER)

    def try_be_cache(self) -> bool:
        """Become the daemon without a mount, unless there is one. A forked child is not."""
        # A lock of the process, not of the open file: only then the kernel reports its owner.
        return self._try_lock(fcntl.F_WRLCK, _CACHE, fcntl.F_SETLK)

    # -- the other processes -------------------------------------------------------------------------------

    def has_master(self) -> bool:
        return self._is_locked(_MASTER, 1)

    def has_candidate_below(self, rank: int) -> bool:
        """Whether a candidate of a smaller rank lives."""
        return self._is_locked(_CANDIDATES, rank)

    def has_user_below(self, rank: int) -> bool:
        """Whether a user of a smaller rank lives."""
        return self._is_locked(_USERS, rank)

    def has_users(self) -> bool:
        return self._is_locked(_USERS, _RANKS)

    def cache_process(self) -> int | None:
        """The ID of the daemon without a mount; None if there is none that this process can see."""
        is_locked, process = self._query(fcntl.F_GETLK, _CACHE, 1)
        return process if is_locked and process > 0 else None

    def _try_lock(self, kind: int, byte: int, command: int = fcntl.F_OFD_SETLK, length: int = 1) -> bool:
        """`length` 0: all bytes from there on."""
        with suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(self._file, command, _FLOCK.pack(kind, os.SEEK_SET, byte, length, 0))
            return True
        return False

    def _is_locked(self, start: int, length: int) -> bool:
        """Whether others hold a lock within these bytes."""
        if length == 0:  # for the kernel that means all bytes
            return False
        return self._query(fcntl.F_OFD_GETLK, start, length)[0]

    def _query(self, command: int, start: int, length: int) -> tuple[bool, int]:
        """Whether others hold a lock within these bytes; and its process, if the lock is of a process."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(self._file, command, request))
        return kind != fcntl.F_UNLCK, process
