"""Counts the readers that wait for bytes: prefetches give way to them. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio


class Foreground:
    """Used from one trio thread. One for each node."""

    def __init__(self) -> None:
        self.readers = 0
        """Those that wait now."""
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
        """Until no reader has waited for this time: a sequential reader waits again in a moment. Returns at once,
        without a checkpoint, if that is so already.
        """
        while self.readers or (left_s := self._quiet_since_s + for_s - trio.current_time()) > 0:
            if self.readers:
                await self._quiet.wait()
            else:
                await trio.sleep(left_s)
