"""A semaphore with two priorities: first requests before retries. Blocks.

A retry is for bytes that were in flight at the last request and can wait; a first request may succeed at once.
"""

from collections import deque
from threading import Lock

FIRSTS_IN_A_ROW_MAX = 8
"""After this many first requests, one retry gets the semaphore, so that no retry starves."""


class _Ticket:
    """A waiting thread. `called` is locked until the semaphore is its own."""

    def __init__(self) -> None:
        self.called = Lock()
        self.called.acquire()


class PrioritySemaphore:
    """Thread-safe; up to `count` threads hold it at a time."""

    def __init__(self, count: int) -> None:
        self._lock = Lock()  # guards all below
        self._free = count
        self._firsts: deque[_Ticket] = deque()
        self._retries: deque[_Ticket] = deque()
        self._firsts_in_a_row = 0

    def acquire(self, timeout_s: float, is_retry: bool = False) -> bool:
        """Wait for the semaphore; False if it was not free within `timeout_s`. The holder releases it."""
        waiting = self._retries if is_retry else self._firsts
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            ticket = _Ticket()
            waiting.append(ticket)
        if ticket.called.acquire(timeout=timeout_s):
            return True
        with self._lock:
            if ticket not in waiting:  # released to it after the timeout
                return True
            waiting.remove(ticket)
            return False

    def release(self) -> None:
        """Pass the semaphore to the next thread."""
        with self._lock:
            if not self._firsts and not self._retries:
                self._free += 1
                return
            is_for_first = bool(self._firsts) and not (
                self._retries and self._firsts_in_a_row >= FIRSTS_IN_A_ROW_MAX
            )
            self._firsts_in_a_row = self._firsts_in_a_row + 1 if is_for_first else 0
            (self._firsts if is_for_first else self._retries).popleft().called.release()
