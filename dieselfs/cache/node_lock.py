"""Which processes of a node take part in a job, and who of them is the master. This module locks a file.

All lock single bytes of one file, and never read or write it:

    byte 0            exclusive   the master
    1 + rank          shared      candidates: daemons, which may become the master
    2^32 + rank       shared      users: programs that read with the library
    2^33              exclusive   the daemon without a mount, of which a node has one (`dlcmd cache`)
    2^33 + 1          shared      all who have the file open

The kernel takes locks away when a process ends, however it ends: nothing has to be renewed. A daemon that ends as the
last removes the file: it takes all bytes first, so nobody else has it; and whoever opens it then, looks whether it is
still there once he has his lock, or opens the next one.
"""

import fcntl
import os
import struct
import time
from contextlib import suppress
from pathlib import Path

from dieselfs.cache.member import RANK_MAX
from dieselfs.cache.node_socket import check_private, is_at
from dieselfs.errors import Unavailable
from dieselfs.limits import NODE_LOCK_TIMEOUT_S

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
    """The file that goes with the socket of a job's master on a node (`job_socket_path`)."""
    return socket.with_suffix(".job")


def start_path(path: Path) -> Path:
    """The file that programs lock which start a daemon; `path`: of the socket, or of the lock."""
    return path.with_suffix(".start")


class NodeLock:
    """The locks of one process. They belong to the open file: a forked child has them too, until both have ended.

    What is asked is about other processes, and about other `NodeLock`s of this one.
    """

    def __init__(self, path: Path) -> None:
        """`path`: see `lock_path`. Its folder is made for this user alone. Waits NODE_LOCK_TIMEOUT_S at most while
        another process removes the file.

        Raises Unavailable if it cannot be used, AccessDenied if others can reach into it.
        """
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(path.parent)
            end_s = time.monotonic() + NODE_LOCK_TIMEOUT_S
            while time.monotonic() < end_s:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                if self._try_lock(fcntl.F_RDLCK, _PRESENT) and is_at(path, self._file):
                    return
                os.close(self._file)  # somebody else is removing it
                time.sleep(_PAUSE_S)
        except OSError as error:
            raise Unavailable(f"the lock of the job, {path}: {error.strerror}") from None
        raise Unavailable(
            f"the lock of the job, {path}: another process removes it, and does not come to an end"
        )

    def close(self) -> None:
        """Give up all locks."""
        os.close(self._file)

    def clear(self) -> None:
        """Give up all locks; and if nobody else has the file open, remove it, and what programs have put beside it to
        start a daemon (`start_path`). Not for who has forked a child that goes on with it.
        """
        with suppress(OSError):  # then it stays
            self._try_lock(fcntl.F_UNLCK, _CACHE, fcntl.F_SETLK)
            if self._try_lock(fcntl.F_WRLCK, 0, length=0) and is_at(self._path, self._file):
                start_path(self._path).unlink(missing_ok=True)
                self._path.unlink()
        os.close(self._file)

    # -- what this process is ----------------------------------------------------------------------------

    def be_candidate(self, rank: int) -> None:
        self._try_lock(fcntl.F_RDLCK, _CANDIDATES + rank)  # shared: always granted

    def be_user(self, rank: int) -> None:
        self._try_lock(fcntl.F_RDLCK, _USERS + rank)

    def try_lead(self) -> bool:
        """Become the master, unless there is one."""
        return self._try_lock(fcntl.F_WRLCK, _MASTER)

    def try_be_cache(self) -> bool:
        """Become the daemon without a mount, unless there is one. A forked child is not."""
        # Of the process, and not of the open file, so that the kernel can say whose it is.
        return self._try_lock(fcntl.F_WRLCK, _CACHE, fcntl.F_SETLK)

    # -- who else is there -------------------------------------------------------------------------------

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
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _CACHE, 1, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, asked))
        return process if kind != fcntl.F_UNLCK and process > 0 else None

    def _try_lock(self, kind: int, byte: int, command: int = fcntl.F_OFD_SETLK, length: int = 1) -> bool:
        """`length` 0: all bytes from there on."""
        with suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(self._file, command, _FLOCK.pack(kind, os.SEEK_SET, byte, length, 0))
            return True
        return False

    def _is_locked(self, start: int, length: int) -> bool:
        """Whether others hold a lock within these bytes."""
        if length == 0:  # to the kernel that would mean all of them
            return False
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        answer = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
