"""Watches and ends a process that is not a child. This module sends signals."""

import os
import select
import signal
import weakref
from contextlib import suppress

DEATH_TIMEOUT_S = 10.0
"""A killed process may first have to free much memory."""


class ProcessHandle:
    """One process. A signal never reaches a later process with the same ID."""

    def __init__(self, process: int) -> None:
        """Raises ProcessLookupError if it has ended, OSError if it cannot be watched."""
        self.process = process
        self._descriptor = os.pidfd_open(process)
        # A finalizer: one thread may still use the descriptor while another drops the object.
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def send(self, number: signal.Signals) -> None:
        """Raises ProcessLookupError if it has ended, OSError."""
        signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it has not within `timeout_s`."""
        poll = select.poll()  # select.select fails with descriptors above 1,023
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @property
    def has_ended(self) -> bool:
        return self.wait(0.0)

    def end(self, timeout_s: float) -> bool:
        """Send SIGTERM and wait; False if it has not ended within `timeout_s`. Raises OSError."""
        with suppress(ProcessLookupError):
            self.send(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self, timeout_s: float) -> bool:
        """As `end`, with SIGKILL after `timeout_s`; False if it has not ended DEATH_TIMEOUT_S after that."""
        if self.end(timeout_s):
            return True
        with suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        return self.wait(DEATH_TIMEOUT_S)


def wait_for_end(process: int, timeout_s: float) -> bool:
    """Wait until a process has ended; False if it has not within `timeout_s`. Raises OSError."""
    try:
        return ProcessHandle(process).wait(timeout_s)
    except ProcessLookupError:
        return True
