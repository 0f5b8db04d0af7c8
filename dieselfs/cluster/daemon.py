"""The node master, for programs that read with the library: found, or started. This module opens sockets, locks files,
starts processes and kills them.

A node with a mount in the job, or with `dlcmd cache`, has a master already. Else the first program that reads starts
one, unless a program of a smaller rank does so within MASTER_PATIENCE_S. It outlives its program: it ends when no
program of the job has run on the node for JOB_IDLE_S, and programs start another if it dies or hangs. It is started by
the name of its module, so the layers stay apart.

A master that is stopped, or hangs, keeps its lock: no other process can become the master, and attached processes run
into timeouts. If another process took its place, there would be two masters once it wakes. So an attached process that
gets no answer for MASTER_SILENCE_S kills it, as a supervisor kills a daemon that hangs; then the lock is free.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dieselfs.cluster.member import RANK_MAX
from dieselfs.cluster.node_client import connect_private
from dieselfs.cluster.node_lock import NodeLock, lock_path, start_path
from dieselfs.cluster.node_messages import Hello, Welcome, decode, encode
from dieselfs.errors import DieselfsError
from dieselfs.limits import (
    JOB_MASTER_WAIT_S,
    MASTER_PATIENCE_S,
    MASTER_POLL_S,
    MASTER_SILENCE_S,
    NODE_PACKET_BYTES_MAX,
)
from dieselfs.net.sockets import peer_process
from dieselfs.process.launch import ProcessHandle, start
from dieselfs.process.state_dirs import locked

_LOOKS_MIN = 3
"""Unanswered greetings before a master is killed: the greeting process may itself have been stopped meanwhile."""


@dataclass(eq=False, slots=True)
class _Silence:
    """A process that listens and does not answer, and since when."""

    process: int
    since_s: float
    handle: ProcessHandle | None = None
    """None if it cannot be killed."""
    looked_s: float = 0.0
    looks: int = 0
    is_over: bool = False


class MasterWatch:
    """Finds out whether the master answers, and kills one that hangs. Blocks; used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        digest: bytes,
        silence_s: float = MASTER_SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path`: the master's socket (`job_socket_path`); `digest`: of its snapshot; `silence_s`: a master that does
        not answer for this time is killed. After a longer pause between two calls of `look` the time starts again: the
        master may have answered other processes meanwhile, or have been stopped together with this one.
        """
        self.interval_s = silence_s / (_LOOKS_MIN + 1)
        """Interval of calls of `look`."""
        self._path = path
        self._digest = digest
        self._silence_s = silence_s
        self._clock = clock
        self._silence: _Silence | None = None

    @property
    def silent_s(self) -> float:
        """How long the master has not answered; 0 if it answers, or if there is none. From any thread."""
        silence = self._silence
        return 0.0 if silence is None else self._clock() - silence.since_s

    def look(self) -> bool:
        """Greet the master; returns whether it replies with a welcome. Waits NODE_HELLO_TIMEOUT_S at most."""
        now_s = self._clock()
        process, is_welcome = self._greet()
        silence = self._silence
        if process is None:
            silence = None
        elif silence is None or silence.process != process or now_s - silence.looked_s > self._silence_s:
            silence = _Silence(process, now_s)
            with suppress(OSError):
                if process not in (0, os.getpid()):  # 0: it runs in another container
                    silence.handle = ProcessHandle(process)
        self._silence = silence
        if silence is not None:
            silence.looked_s = now_s
            silence.looks += 1
            if silence.looks >= _LOOKS_MIN and self.silent_s >= self._silence_s and not silence.is_over:
                self._end(silence)
        return is_welcome

    def close(self) -> None:
        """Forget the silence. From any thread."""
        self._silence = None

    def _greet(self) -> tuple[int | None, bool]:
        """The process of a master that does not answer, if there is one; and whether a master welcomes this process."""
        silence = self._silence
        process = None
        try:
            with connect_private(self._path) as connection:
                process = peer_process(connection)
                connection.send(encode(1, Hello(digest=self._digest)))
                _, answer = decode(connection.recv(NODE_PACKET_BYTES_MAX))
                return None, isinstance(answer, Welcome)
        except TimeoutError:
            return process, False
        except BlockingIOError:  # its queue of connections is full
            return (silence.process if silence else None), False
        except (OSError, DieselfsError):
            return None, False

    def _end(self, silence: _Silence) -> None:
        silence.is_over = True
        what = f"the node master, process {silence.process}, has not answered for {self.silent_s:.0f} s"
        if silence.handle is None:
            _log.warning("%s, and cannot be killed from here: reading directly from the server", what)
            return
        try:
            silence.handle.send(signal.SIGKILL)
            _log.warning("%s: killed it; another process becomes the master", what)
        except ProcessLookupError:
            pass  # it has just ended
        except OSError as error:
            _log.warning("%s, and cannot be killed: %s", what, error.strerror)


JOB_START_INTERVAL_S = 5.0
"""The programs of a node start a daemon at most once in this time; a running daemon is known by its lock."""

_DOUBLINGS_MAX = 4
"""After each failed start the pause before the next one doubles, up to this many times."""

_log = logging.getLogger(__name__)


class JobDaemon:
    """A program's hold on its node master: while a program has it, the master does not end as idle.

    Blocks; safe to use from several threads. A forked child has the hold, too, until both have closed it.
    """

    def __init__(
        self,
        path: Path,
        digest: bytes,
        rank: int,
        command: Callable[[int], Sequence[str]],
        log: Path,
        supply: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`path`: the master's socket (`job_socket_path`); `digest`: of its snapshot; `rank`: of this program;
        `command`: the program that becomes the master, with the descriptor that `supply` opens (it raises OSError);
        `log`: its log file.
        """
        self._path = path
        self._watch = MasterWatch(path, digest, clock=clock)
        self._rank = rank
        self._command = command
        self._log = log
        self._supply = supply
        self._clock = clock
        self._pause = pause
        self._is_started = False  # by this program, and not known to have ended
        self._process: ProcessHandle | None = None
        self._failed_starts = 0
        self._young_until_s = float("-inf")
        self._missing_since_s: float | None = None
        self._hold: NodeLock | None = None
        try:
            self._hold = NodeLock(lock_path(path))
            self._hold.be_user(rank)
        except DieselfsError as error:
            _log.warning("cannot take part in the job, reading directly from the server: %s", error)

    def ensure(self, wait_s: float) -> None:
        """Start a master unless the node has one, and wait up to `wait_s` until it answers.

        Errors are logged: readers do without a master, and call this again later.
        """
        end_s = self._clock() + wait_s
        while not self._watch.look():
            if not self._start_if_due() or self._clock() >= end_s:
                return
            self._pause(MASTER_POLL_S)
        self._missing_since_s, self._failed_starts, self._young_until_s = None, 0, float("-inf")

    def close(self) -> None:
        """Release the hold. May be called again."""
        self._watch.close()
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.close()

    def _start_if_due(self) -> bool:
        """Start a master if this program is the one to do so now. Returns whether the node will have one soon."""
        hold = self._hold
        if hold is None:
            return False
        has_ended = self._take_end()
        if hold.has_candidate_below(RANK_MAX + 1):
            return True  # the candidate is the master, or becomes it
        now_s = self._clock()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        if hold.has_user_below(self._rank) and now_s - self._missing_since_s < MASTER_PATIENCE_S:
            return True
        if has_ended and now_s < self._young_until_s:
            self._failed_starts += 1
            _log.warning(
                "node cache daemon failed to start; reading directly from the server (log: %s)", self._log
            )
            return False
        try:
            self._start()
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.warning("cannot start the daemon of this node: %s; reading directly from the server", error)
            return False
        return True

    def _start(self) -> None:
        """Start the daemon, unless another program on this node has just done so. Raises OSError."""
        with suppress(BlockingIOError), locked(start_path(self._path)) as descriptor:
            started = os.fstat(descriptor)
            interval_s = JOB_START_INTERVAL_S * 2 ** min(self._failed_starts, _DOUBLINGS_MAX)
            since_s = abs(time.time() - started.st_mtime)  # a clock may have been set back
            if started.st_size and since_s < interval_s:
                return
            os.pwrite(descriptor, b"\n", 0)  # sets the time of the last start
            with open(self._supply(), "rb") as supplied:
                # In our folder: paths in the environment and in the configuration file are relative to it.
                process = start(
                    self._command(supplied.fileno()), self._log, [supplied.fileno()], folder=os.getcwd()
                )
            _log.info("started the daemon of this node, process %d (log: %s)", process, self._log)
            self._young_until_s = self._clock() + JOB_MASTER_WAIT_S
            self._is_started, self._process = True, None
            with suppress(ProcessLookupError):  # it has ended already
                self._process = ProcessHandle(process)

    def _take_end(self) -> bool:
        """Whether the daemon that this program started has ended; True once."""
        has_ended = self._is_started and (self._process is None or self._process.has_ended)
        if has_ended:
            self._is_started, self._process = False, None
        return has_ended
