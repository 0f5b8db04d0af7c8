"""Turns at something that only so many threads may use at a time: who comes for the first time goes before who comes
again. Blocks.

Who comes again has been told that what he wants is still on its way: he can wait, while for others it may be here.
"""

from collections import deque
from threading import Lock

FIRSTS_IN_A_ROW_MAX = 8
"""After so many, it is the turn of one who comes again, so that none of them waits for ever."""


class _Ticket:
    """One who waits. `called` is held until it is his turn."""

    def __init__(self) -> None:
        self.called = Lock()
        self.called.acquire()


class Turns:
    """Safe to use from many threads; `count` of them have a turn at one moment."""

    def __init__(self, count: int) -> None:
        self._lock = Lock()  # guards all below
        self._free = count
        self._firsts: deque[_Ticket] = deque()
        self._agains: deque[_Ticket] = deque()
        self._firsts_in_a_row = 0

    def take(self, timeout_s: float, is_again: bool = False) -> bool:
        """Wait for a turn, which is to be given back; False if it did not come within `timeout_s`."""
        waiting = self._agains if is_again else self._firsts
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            ticket = _Ticket()
            waiting.append(ticket)
        if ticket.called.acquire(timeout=timeout_s):
            return True
        with self._lock:
            if ticket not in waiting:  # it was called this moment
                return True
            waiting.remove(ticket)
            return False

    def give_back(self) -> None:
        """It is the turn of the next."""
        with self._lock:
            if not self._firsts and not self._agains:
                self._free += 1
                return
            is_for_first = bool(self._firsts) and not (
                self._agains and self._firsts_in_a_row >= FIRSTS_IN_A_ROW_MAX
            )
            self._firsts_in_a_row = self._firsts_in_a_row + 1 if is_for_first else 0
            (self._firsts if is_for_first else self._agains).popleft().called.release()
