"""Counts the readers that wait for bytes: prefetches give way to them. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio


class Foreground:
    """Used from one trio thread. One for each node."""

    def __init__(self) -> None:
        self._waiting = 0
        self._quiet = trio.Event()  # set and replaced when the last wait ends
        self._quiet_since_s = -inf

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A reader waits for a fetch in this block."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._quiet_since_s = trio.current_time()
                self._quiet.set()
                self._quiet = trio.Event()

    @property
    def is_quiet(self) -> bool:
        """Whether no reader waits."""
        return not self._waiting

    async def quiet(self, for_s: float) -> None:
        """Until no reader has waited for this time: a sequential reader waits again in a moment. Returns at once,
        without a checkpoint, if that is so already.
        """
        while self._waiting or (left_s := self._quiet_since_s + for_s - trio.current_time()) > 0:
            if self._waiting:
                await self._quiet.wait()
            else:
                await trio.sleep(left_s)
