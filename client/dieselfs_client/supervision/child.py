"""A process that the supervisor started: how it is doing, and how it ended. This module kills, and reads `/proc`."""

import contextlib
import os
import signal

from dieselfs_client.supervision.tether import Tether

HANG_S = 10.0
"""A daemon that gives no sign of life for so long, while requests wait for it, hangs."""
HANG_WITHOUT_REQUESTS_S = 20.0
"""The same if no request is seen to wait (one that it has taken, and does not answer, is not seen)."""
LATE_BEAT_S = 2.5
"""A daemon whose sign of life is so late is looked at: has it been killed, and cannot die?"""
DEATH_TIMEOUT_S = 1.0
"""A killed daemon is waited for so long. One may wait itself, in the kernel, for an answer of its own mount."""


class Child:
    """A zygote or a daemon. `pid` is 0 until it is known; `status` is that of waitpid, once it is dead."""

    def __init__(self, tether: Tether, now_s: float, pid: int = 0) -> None:
        self.tether = tether
        self.pid = pid
        self.born_s = self.beat_s = now_s
        self.is_ready = False
        self.has_hung_up = False
        self.status: int | None = None
        self.killed_s: float | None = None
        self.last_words: tuple[int, str, str] | None = None
        """Exit code, kind of error, and message, if it ended on purpose."""

    def kill(self, now_s: float) -> None:
        if self.killed_s is None:
            self.killed_s = now_s
        if self.pid and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def is_gone(self, now_s: float) -> bool:
        """Whether it serves no more. It may still be there, in the kernel, and wait for who comes after it."""
        if self.status is not None:
            return True
        if self.killed_s is not None and now_s - self.killed_s > DEATH_TIMEOUT_S:
            return True
        return (self.has_hung_up and not self.pid) or (now_s - self.beat_s > LATE_BEAT_S and self._is_dying())

    def _is_dying(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
        except OSError:
            return True

    def is_hung(self, now_s: float, has_requests: bool) -> bool:
        return now_s - self.beat_s > (HANG_S if has_requests else HANG_WITHOUT_REQUESTS_S)

    @property
    def end(self) -> str:
        """How it ended, in words."""
        if self.last_words is not None:
            return self.last_words[2]
        if self.status is None:
            return "does not answer"
        if os.WIFSIGNALED(self.status):
            return f"was killed by signal {os.WTERMSIG(self.status)}"
        return f"ended with exit code {os.waitstatus_to_exitcode(self.status)}"
