"""The master of a node, for programs that read with the library: found, or started. This module opens sockets, locks
files and starts processes.

A node that has a mount in the job, or `dlcmd cache`, has a master already. Else the first program that reads starts
one, unless one of a smaller rank does so within MASTER_PATIENCE_S. It belongs to none of them: it ends when no program
of the job has been on the node for a while, and is started again should it die, or hang. It is started as a program, so
that the layers stay apart.
"""

import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dieselfs.cache.master_watch import MasterWatch
from dieselfs.cache.member import RANK_MAX
from dieselfs.cache.node_lock import NodeLock, lock_path, start_path
from dieselfs.errors import DieselfsError
from dieselfs.limits import (
    JOB_MASTER_WAIT_S,
    JOB_START_INTERVAL_S,
    MASTER_PATIENCE_S,
    MASTER_POLL_S,
)

_DOUBLINGS_MAX = 4
"""A daemon that does not come about is started more and more seldom."""

_log = logging.getLogger(__name__)


def open_nothing() -> int:
    """A descriptor of an empty file. Raises OSError."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class JobDaemon:
    """A program's hold on the master of its node: while it has it, the master does not end for want of readers.

    Blocks; safe to use from several threads. A forked child has the hold, too, until both have let go.
    """

    def __init__(
        self,
        path: Path,
        digest: bytes,
        rank: int,
        command: Sequence[str],
        log: Path,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        supply: Callable[[], int] = open_nothing,
    ) -> None:
        """`path`: the socket of the master (`job_socket_path`), which has the snapshot with this `digest`; `rank`: of
        this program; `command`: the program that becomes the master; `log`: where it writes what it has to say;
        `supply`: opens what it has as its standard input, and raises OSError.
        """
        self._path = path
        self._watch = MasterWatch(path, digest, clock=clock)
        self._rank = rank
        self._command = command
        self._log = log
        self._supply = supply
        self._clock = clock
        self._pause = pause
        self._process: int | None = None  # started here, and not known to have ended
        self._failed_starts = 0
        self._young_until_s = float("-inf")
        self._missing_since_s: float | None = None
        self._hold: NodeLock | None = None
        try:
            self._hold = NodeLock(lock_path(path))
            self._hold.be_user(rank)
        except DieselfsError as error:
            _log.warning("this program takes no part in its job: %s", error)

    def ensure(self, wait_s: float) -> None:
        """See to it that the node has a master, and wait no longer than this until it answers.

        Whatever goes wrong is logged: readers do without, and ask again later.
        """
        end_s = self._clock() + wait_s
        while not self._watch.look():
            is_hopeful = self._start_if_due()
            if not is_hopeful or self._clock() >= end_s:
                return
            self._pause(MASTER_POLL_S)
        self._missing_since_s, self._failed_starts, self._young_until_s = None, 0, float("-inf")

    def close(self) -> None:
        """Let go of the master. May be called again."""
        self._watch.close()
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.close()

    def _start_if_due(self) -> bool:
        """Start a master if it is for this program to do so now; whether there will be one soon, by whomever."""
        hold = self._hold
        if hold is None:
            return False
        has_ended = self._reap()
        if hold.has_candidate_below(RANK_MAX + 1):
            return True  # it is the master, or will be
        now_s = self._clock()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        if hold.has_user_below(self._rank) and now_s - self._missing_since_s < MASTER_PATIENCE_S:
            return True
        if has_ended and now_s < self._young_until_s:
            self._failed_starts += 1
            _log.warning(
                "the daemon of this node did not come about; readers do without it (log: %s)", self._log
            )
            return False
        try:
            self._start()
        except OSError as error:
            _log.warning("cannot start the daemon of this node: %s; readers do without it", error)
            return False
        return True

    def _start(self) -> None:
        """Start the daemon, unless another program of this node has just done so. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(start_path(self._path), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            started = os.fstat(descriptor)
            interval_s = JOB_START_INTERVAL_S * 2 ** min(self._failed_starts, _DOUBLINGS_MAX)
            since_s = abs(time.time() - started.st_mtime)  # clocks are set back, too
            if started.st_size and since_s < interval_s:
                return
            os.pwrite(descriptor, b"\n", 0)  # the time of this is what counts
            self._process = _spawned(self._command, self._log, self._supply)
            self._young_until_s = self._clock() + JOB_MASTER_WAIT_S
            _log.info("started the daemon of this node, process %d (log: %s)", self._process, self._log)
        except BlockingIOError:  # another program is doing it
            return
        finally:
            os.close(descriptor)

    def _reap(self) -> bool:
        """Whether the daemon that was started here has ended, which is said once."""
        process = self._process
        if process is None:
            return False
        try:
            has_ended = os.waitpid(process, os.WNOHANG) != (0, 0)
        except ChildProcessError:  # it is that of our parent, before a fork
            self._process = None
            return False
        if has_ended:
            self._process = None
        return has_ended


def _spawned(command: Sequence[str], log: Path, supply: Callable[[], int]) -> int:
    """The ID of a new process, which lives on when we end. Raises OSError."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # It sees the modules that we see, also where dieselfs runs from a checkout; and it begins in our folder, from which
    # the paths in settings, environment and configuration file are meant.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with open(log, "ab", opener=_private_opener) as output, open(supply(), "rb") as supplied:
        process = subprocess.Popen(
            command,
            stdin=supplied,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )
    process.returncode = 0  # it is waited for by its ID, and nobody is to be warned that it lives
    return process.pid


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
