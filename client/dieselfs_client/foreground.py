"""Who waits for bytes just now: whoever works ahead of readers gives way to them. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio


class Foreground:
    """Used from one trio thread. A node has one, for all that it fetches."""

    def __init__(self) -> None:
        self._waiting = 0
        self._quiet = trio.Event()  # set, and made anew, when the last one has what he waited for
        self._quiet_since_s = -inf

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In this block somebody waits for a fetch of his own."""
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
        """Whether nobody waits."""
        return not self._waiting

    async def quiet(self, for_s: float) -> None:
        """Until nobody has waited for so many seconds: who reads one thing after the other waits for the next in a
        moment. At once, without a checkpoint, if that is so already.
        """
        while self._waiting or (left_s := self._quiet_since_s + for_s - trio.current_time()) > 0:
            if self._waiting:
                await self._quiet.wait()
            else:
                await trio.sleep(left_s)
