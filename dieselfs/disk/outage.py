"""Until when a disk is not used, and whether that was reported. This module maps memory, and opens a descriptor.

A process and its forks share it: one of them waits for a disk that hangs, and one reports it.
"""

import mmap
import os
import weakref
from contextlib import suppress
from threading import Lock

from dieselfs.forks import renew_after_fork

_OFF, _FULL, _REPORTED = range(3)


class Outage:
    """Thread-safe, also after a fork. Times are those of the clock of the disk tier."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
        self._cells[_OFF] = self._cells[_FULL] = float("-inf")
        # Holds 1 while nothing is reported. The process that reads it has to report.
        self._token = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = weakref.finalize(self, os.close, self._token)
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock."""
        self._lock = Lock()  # the descriptor is not closed while it is used

    @property
    def off_until_s(self) -> float:
        """The disk is not used until then."""
        return self._cells[_OFF]

    @off_until_s.setter
    def off_until_s(self, until_s: float) -> None:
        self._cells[_OFF] = until_s

    @property
    def full_until_s(self) -> float:
        """Nothing is stored until then."""
        return self._cells[_FULL]

    @full_until_s.setter
    def full_until_s(self, until_s: float) -> None:
        self._cells[_FULL] = until_s

    def is_first(self) -> bool:
        """Whether the caller has to report a trouble: nobody has since `end`."""
        with self._lock, suppress(BlockingIOError):
            if self._closing.alive:
                os.eventfd_read(self._token)
                self._cells[_REPORTED] = 1
                return True
        return False

    def end(self, now_s: float) -> None:
        """Something was written at `now_s`. A write that ends during the outage had begun before it: no end."""
        # A process makes an outage known first, and reports it then. So this order loses none.
        with self._lock:
            if self._cells[_REPORTED] and now_s >= max(self._cells[: _FULL + 1]) and self._closing.alive:
                self._cells[_REPORTED] = 0
                os.eventfd_write(self._token, 1)

    def close(self) -> None:
        """Troubles are not reported any more."""
        with self._lock:
            self._closing()
