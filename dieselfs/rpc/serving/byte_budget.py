"""The budget of bulk bytes that a server receives, or sends, at the same time, for all users and for each: a call takes
its bytes before the memory for them. This module waits for other calls.
"""

from collections import Counter

import trio

from dieselfs.errors import Unavailable
from dieselfs.limits import BULK_WAIT_S
from dieselfs.units import format_size


class ByteBudget:
    """For one event loop."""

    def __init__(self, what: str, total_bytes: int, user_bytes: int, wait_s: float = BULK_WAIT_S) -> None:
        """`what`: uploads or replies, for messages."""
        self._what = what
        self._total_bytes = total_bytes
        self._user_bytes = user_bytes
        self._wait_s = wait_s
        # All below are changed only between checkpoints.
        self._held: Counter[str] = Counter()  # bytes by user
        self._held_bytes = 0
        self._waiting = 0
        self._freed = trio.Event()

    async def take(self, user: str, size_bytes: int) -> int:
        """Take this many bytes; of more than a user may have, all that. Returns what to give back.

        Waits while others have them; raises Unavailable after the wait. Without a wait, there is no checkpoint.
        """
        size_bytes = min(size_bytes, self._user_bytes)
        if not self._is_free(user, size_bytes):
            await self._wait(user, size_bytes)
        self._held[user] += size_bytes
        self._held_bytes += size_bytes
        return size_bytes

    def give(self, user: str, taken_bytes: int) -> None:
        """Give back what `take` has returned."""
        self._held_bytes -= taken_bytes
        self._held[user] -= taken_bytes
        if not self._held[user]:
            del self._held[user]
        if self._waiting:
            self._freed.set()
            self._freed = trio.Event()

    async def _wait(self, user: str, size_bytes: int) -> None:
        self._waiting += 1
        try:
            with trio.fail_after(self._wait_s):
                while not self._is_free(user, size_bytes):
                    await self._freed.wait()
        except trio.TooSlowError:
            raise Unavailable(
                f"{self._what} of user {user} or of all users take the {format_size(self._total_bytes)} "
                "that this server has for them; try again later"
            ) from None
        finally:
            self._waiting -= 1

    def _is_free(self, user: str, size_bytes: int) -> bool:
        return (
            self._held_bytes + size_bytes <= self._total_bytes
            and self._held[user] + size_bytes <= self._user_bytes
        )
