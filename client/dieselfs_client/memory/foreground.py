"""Counts the readers that wait for bytes: prefetches pause for them. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio


class Foreground:
    """Used from one trio thread. One for each node."""

    def __init__(self) -> None:
        self.readers = 0
        """How many wait now."""
        self._quiet = trio.Event()  # set and replaced when the last wait ends
        self._quiet_since_s = -inf

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A reader waits for a fetch in this block."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            if not self.readers:
                self._quiet_since_s = trio.current_time()
                self._quiet.set()
                self._quiet = trio.Event()

    async def quiet(self, for_s: float) -> None:
        """Wait until no reader has waited for this time, which bridges the pauses of a sequential reader. Returns at
        once, without a checkpoint, if this is already so.
        """
        while self.readers or (left_s := self._quiet_since_s + for_s - trio.current_time()) > 0:
            if self.readers:
                await self._quiet.wait()
            else:
                await trio.sleep(left_s)
