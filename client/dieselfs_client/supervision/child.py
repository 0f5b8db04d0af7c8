"""The state of a process of the mount, until its end. This module kills, and reads `/proc`.

The process is a child of the supervisor, or was started by an earlier supervisor of the mount and is adopted.
"""

import contextlib
import os
import select
import signal

from dieselfs.process.restart_policy import how_it_ended
from dieselfs_client.supervision.control_channel import ControlChannel

HANG_S = 10.0
"""A daemon without a heartbeat for this long, while requests wait for it, hangs."""
HANG_WITHOUT_REQUESTS_S = 20.0
"""The same while no request waits. A request that the daemon has taken is not seen to wait."""
LATE_BEAT_S = 2.5
"""After this delay of a heartbeat, `/proc` is read: the daemon may have been killed without being able to die."""
DEATH_TIMEOUT_S = 1.0
"""Limit of the wait for a killed daemon. It may block in the kernel, on a request to its own mount."""


class Child:
    """A zygote or a daemon. `pid` is 0 until it is known; `status` is set once it is dead, by waitpid or by `look`."""

    def __init__(self, control_channel: ControlChannel, now_s: float, pid: int = 0) -> None:
        self.control_channel = control_channel
        self.pid = pid
        self.pidfd: int | None = None
        """Watches a process that may not be a child."""
        self.born_s = self.beat_s = now_s
        self.is_ready = False
        self.has_hung_up = False
        self.status: int | None = None
        self.killed_s: float | None = None
        self.exit_report: tuple[int, str, str] | None = None
        """Exit code, kind of error, and message, if it ended on purpose."""

    def watch(self, pid: int) -> None:
        """Its process ID is known. If it has ended already, `status` is set. Raises OSError without a descriptor."""
        self.pid = pid
        self._close_pidfd()
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.status = signal.SIGKILL

    def look(self) -> None:
        """Set the `status` of a process that has ended, and of which waitpid tells nothing: it is no child. How it
        ended is unknown then; that it was killed is assumed.
        """
        if self.status is None and self.pidfd is not None and _is_readable(self.pidfd):
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                self.status = status if found else None
            except ChildProcessError:
                self.status = signal.SIGKILL

    def close(self) -> None:
        """Close the control channel, and stop watching. The process is dead, or is no longer wanted."""
        self.control_channel.close()
        self._close_pidfd()

    def _close_pidfd(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd = None

    def kill(self, now_s: float) -> None:
        if self.killed_s is None:
            self.killed_s = now_s
        if self.pid and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                if self.pidfd is None:
                    os.kill(self.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def is_gone(self, now_s: float) -> bool:
        """Whether it no longer serves. It may still exist, blocked in the kernel until its successor answers."""
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
        """How it ended, for messages."""
        if self.exit_report is not None:
            return self.exit_report[2]
        if self.status is None:
            return "does not answer"
        return how_it_ended(os.waitstatus_to_exitcode(self.status))


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
