"""Finds out whether the node master answers, and kills one that hangs. This module opens sockets, and kills.

A master that is stopped, or hangs, keeps its lock: no other process can become the master, and attached processes run
into timeouts. A second master beside it would make two once it wakes. So an attached process that gets no answer for
MASTER_SILENCE_S kills it, as a supervisor does with a daemon that hangs; then the lock is free.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dieselfs.cluster.node_client import connect_private
from dieselfs.cluster.node_messages import Hello, Welcome, decode, encode
from dieselfs.errors import DieselfsError
from dieselfs.limits import MASTER_SILENCE_S, NODE_PACKET_BYTES_MAX
from dieselfs.process.handle import ProcessHandle
from dieselfs.sockets import peer_process

_LOOKS_MIN = 3
"""Unanswered greetings before a master is killed: the greeting process may itself have been stopped meanwhile."""

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Silence:
    """Of one process, which listens and does not answer."""

    process: int
    since_s: float
    handle: ProcessHandle | None = None
    """None if it cannot be killed."""
    looked_s: float = 0.0
    looks: int = 0
    is_over: bool = False


class MasterWatch:
    """Blocks; used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        digest: bytes,
        silence_s: float = MASTER_SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path`: the master's socket (`job_socket_path`); `digest`: of its snapshot; `silence_s`: a master that does
        not answer for this long is killed. After a longer pause between two looks the count starts again: the master
        may have answered other processes meanwhile, or have been stopped together with this one.
        """
        self.interval_s = silence_s / (_LOOKS_MIN + 1)
        """How often `look` should be called."""
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
        """Greet the master; returns whether it welcomes us. Waits NODE_HELLO_TIMEOUT_S at most."""
        now_s = self._clock()
        process, is_welcome = self._greet()
        silence = self._silence
        if process is None:
            silence = None
        elif silence is None or silence.process != process or now_s - silence.looked_s > self._silence_s:
            silence = _Silence(process, now_s, _handle(process))
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
        """The process of a master that does not answer, if there is one; and whether we are welcome."""
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


def _handle(process: int) -> ProcessHandle | None:
    if process in (0, os.getpid()):  # 0: it runs in another container
        return None
    try:
        return ProcessHandle(process)
    except OSError:
        return None
