"""Whether the master of a node answers, and the end of one that does not. This module opens sockets, and kills.

A master that is stopped, or hangs, keeps its lock: nobody can take its place, and the attached wait for it again
and again. To go on beside it would make two masters as soon as it wakes. So whoever finds that it has said nothing for
long kills it, as the supervisor of a mount does with a daemon that hangs; then its place is free, as after any death.
"""

import logging
import os
import signal
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dieselfs.cache.node_messages import Hello, Welcome, decode, encode
from dieselfs.cache.node_socket import check_private, peer_process, peer_user
from dieselfs.errors import DieselfsError
from dieselfs.limits import MASTER_SILENCE_S, NODE_HELLO_TIMEOUT_S, NODE_PACKET_BYTES_MAX
from dieselfs.rpc.connection import reachable_path

_LOOKS_MIN = 3
"""Greetings without an answer, before a master is killed: whoever greets may have been stopped himself meanwhile."""

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Silence:
    """Of one process, which listens and says nothing."""

    process: int
    since_s: float
    handle: int | None = None
    """A descriptor of it, so that nobody is taken for it who has its number later; None if it cannot be killed."""
    looked_s: float = 0.0
    looks: int = 0
    is_over: bool = False

    @classmethod
    def begin(cls, process: int, now_s: float) -> "_Silence":
        silence = cls(process, now_s, _handle(process))
        if silence.handle is not None:  # with this, as one thread may look while another one closes the watch
            weakref.finalize(silence, os.close, silence.handle)
        return silence


class MasterWatch:
    """Blocks; used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        digest: bytes,
        silence_s: float = MASTER_SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path`: the socket of the master (`job_socket_path`), which has the snapshot with this `digest`; `silence_s`:
        one that says nothing for so long is killed. If we look more seldom than that, we begin anew: it may have
        answered others in between, or have been stopped together with us.
        """
        self.interval_s = silence_s / (_LOOKS_MIN + 1)
        """How often somebody should look."""
        self._path = path
        self._digest = digest
        self._silence_s = silence_s
        self._clock = clock
        self._silence: _Silence | None = None

    @property
    def silent_s(self) -> float:
        """For how long a master is there and says nothing; 0 if it answers, or if there is none. From any thread."""
        silence = self._silence
        return 0.0 if silence is None else self._clock() - silence.since_s

    def look(self) -> bool:
        """Greet the master; whether it bids us welcome. Waits NODE_HELLO_TIMEOUT_S at most."""
        now_s = self._clock()
        process, is_welcome = self._greet()
        silence = self._silence
        if process is None:
            silence = None
        elif silence is None or silence.process != process or now_s - silence.looked_s > self._silence_s:
            silence = _Silence.begin(process, now_s)
        self._silence = silence
        if silence is not None:
            silence.looked_s = now_s
            silence.looks += 1
            if silence.looks >= _LOOKS_MIN and self.silent_s >= self._silence_s and not silence.is_over:
                self._end(silence)
        return is_welcome

    def close(self) -> None:
        """Forget what was seen. From any thread."""
        self._silence = None

    def _greet(self) -> tuple[int | None, bool]:
        """The process of a master that says nothing, if there is one; and whether we are welcome."""
        silence = self._silence
        process = None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(NODE_HELLO_TIMEOUT_S)
            try:
                check_private(self._path.parent)
                with reachable_path(str(self._path)) as reachable:
                    connection.connect(reachable)
                if peer_user(connection) != os.getuid():
                    return None, False
                process = peer_process(connection)
                connection.send(encode(1, Hello(self._digest)))
                _, answer = decode(connection.recv(NODE_PACKET_BYTES_MAX))
                return None, isinstance(answer, Welcome)
            except TimeoutError:
                return process, False
            except BlockingIOError:  # so many wait for it already that there is no room for one more
                return (silence.process if silence else None), False
            except (OSError, DieselfsError):
                return None, False

    def _end(self, silence: _Silence) -> None:
        silence.is_over = True
        what = (
            f"the master of this node, process {silence.process}, has said nothing for {self.silent_s:.0f} s"
        )
        if silence.handle is None:
            _log.warning("%s, and cannot be killed from here: its chunks come from a server", what)
            return
        try:
            signal.pidfd_send_signal(silence.handle, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has just ended
        except OSError as error:
            _log.warning("%s, and cannot be killed: %s", what, error.strerror)
            return
        _log.warning("%s: it is killed, and another takes its place", what)


def _handle(process: int) -> int | None:
    """A descriptor of another process that we may kill."""
    if process in (0, os.getpid()):  # 0: it lives where we cannot see it, in a container
        return None
    with suppress(OSError):
        return os.pidfd_open(process)
    return None
