"""Objects that are reset in a forked child: threads and locks of the parent do not exist there. This module waits for
threads, and registers a function that runs after each fork.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol
from weakref import WeakSet


class _Forked(Protocol):
    def after_fork(self) -> None:
        """Called in a forked child, before any other code of it."""
        ...


_objects: WeakSet[_Forked] = WeakSet()
renew_after_fork = _objects.add
"""The method `after_fork` of this object is called in each forked child, as long as the object lives."""


def _after_fork() -> None:
    for each in list(_objects):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class SingleFlight:
    """Lets one thread fetch a chunk while others that need it wait. Works after a fork."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s`: a thread waits this long for another one, and then goes ahead itself."""
        self._wait_s = wait_s
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = Lock()  # guards the one below
        self._flights: dict[int, Lock] = {}  # by chunk; held by the thread that fetches it

    def is_taken(self, chunk: int) -> bool:
        """Whether a thread is in the block of this chunk now."""
        return chunk in self._flights

    @contextmanager
    def of(self, chunk: int) -> Iterator[None]:
        """The block is that of one thread at a time, unless it takes longer than `wait_s`."""
        with self._lock:
            flight = self._flights.setdefault(chunk, Lock())
        is_held = flight.acquire(timeout=self._wait_s)
        try:
            yield
        finally:
            with self._lock:
                self._flights.pop(chunk, None)
            if is_held:
                flight.release()
