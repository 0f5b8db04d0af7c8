"""Which process of a node is the master of a job there: the smallest rank among those that live (DIESEL 4.2).

Locks on one file of the job say who lives and who is the master. The kernel takes them away when a process ends,
however it ends, so there is nothing to renew, and nothing is left behind. A master stays one for as long as it lives,
also when a smaller rank comes later: the node's chunks are in its memory.
"""

import fcntl
import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import trio

from dieselfs.cache.member import Terms
from dieselfs.cache.node_socket import check_private
from dieselfs.errors import Unavailable
from dieselfs.limits import MASTER_PATIENCE_S, MASTER_POLL_S

_JOB_CHARACTERS = 40
_MASTER = 0
_FIRST_RANK = 1
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, process


def lock_path(folder: Path, terms: Terms, fingerprint: bytes) -> Path:
    """The file on which the processes of one job agree; `folder` is `runtime_folder()`.

    The name begins with the job's, for people; what tells jobs apart is the hash.
    """
    said = b"\0".join((terms.dataset.encode(), terms.job.encode(), fingerprint))
    return folder / f"{terms.job[:_JOB_CHARACTERS]}-{hashlib.sha256(said).hexdigest()[:32]}.lock"


class Mastership:
    """A process's claim to be the master; a context manager, at whose end it is given up.

    The locks belong to the open file: a forked child shares them until it ends or executes another program.
    """

    def __init__(self, path: Path, rank: int) -> None:
        """`path`: see `lock_path`. Its folder is made for this user alone.

        Raises Unavailable if it cannot be used, AccessDenied if others can reach into it.
        """
        self._rank = rank
        self.is_master = False
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            check_private(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise Unavailable(f"the lock of the job, {path}: {error.strerror}") from None
        self._try_lock(fcntl.F_RDLCK, _FIRST_RANK + rank)  # shared: always granted

    def __enter__(self) -> "Mastership":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)
        self.is_master = False

    def try_take(self, has_waited: bool = False) -> bool:
        """Become the master, if there is none and no smaller rank lives. `has_waited`: even if one does."""
        if not self.is_master and (has_waited or not self._is_locked(_FIRST_RANK, self._rank)):
            self.is_master = self._try_lock(fcntl.F_WRLCK, _MASTER)
        return self.is_master

    async def take(self) -> None:
        """Wait until this process is the master.

        A smaller rank that lives but does not take it, because it is stopped or has only just begun, is waited for
        MASTER_PATIENCE_S. If cancelled, it is not the master.
        """
        free_since_s: float | None = None
        while True:
            now_s = trio.current_time()
            is_free = not self._is_locked(_MASTER, 1)
            free_since_s = (now_s if free_since_s is None else free_since_s) if is_free else None
            if self.try_take(free_since_s is not None and now_s - free_since_s >= MASTER_PATIENCE_S):
                return
            await trio.sleep(MASTER_POLL_S)

    def _try_lock(self, kind: int, byte: int) -> bool:
        with suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
            return True
        return False

    def _is_locked(self, start: int, length: int) -> bool:
        """Whether others hold a lock within these bytes."""
        if length == 0:  # to the kernel that would mean all of them
            return False
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        answer = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
