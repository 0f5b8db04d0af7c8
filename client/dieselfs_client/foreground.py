"""Who waits for bytes just now: whoever works ahead of readers gives way to them. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Foreground:
    """Used from one trio thread. A node has one, for all that it fetches."""

    def __init__(self) -> None:
        self._waiting = 0
        self._quiet = (
            trio.Event()
        )  # set, and made anew for the next, when the last one has what he waited for

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In this block somebody waits for a fetch of his own."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._quiet.set()
                self._quiet = trio.Event()

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits."""
        return not self._waiting

    async def quiet(self) -> None:
        """Until nobody waits; at once, without a checkpoint, if that is so already. Whoever reads may be there again
        after the next checkpoint.
        """
        while self._waiting:
            await self._quiet.wait()
