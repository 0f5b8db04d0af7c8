"""The budget of bulk bytes that a server receives at the same time, for all users and for each: memory is taken when a
call begins, before its bytes arrive. This module waits for other calls.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dieselfs.errors import Unavailable
from dieselfs.limits import BULK_BYTES_MAX, BULK_BYTES_PER_USER_MAX, BULK_WAIT_S
from dieselfs.units import format_size


class ByteBudget:
    """For one event loop."""

    def __init__(
        self,
        total_bytes: int = BULK_BYTES_MAX,
        user_bytes: int = BULK_BYTES_PER_USER_MAX,
        wait_s: float = BULK_WAIT_S,
    ) -> None:
        self._total_bytes = total_bytes
        self._user_bytes = user_bytes
        self._wait_s = wait_s
        self._held: Counter[str] = Counter()  # bytes by user; changed only between checkpoints
        self._freed = trio.Event()

    @asynccontextmanager
    async def held(self, user: str, size_bytes: int) -> AsyncIterator[None]:
        """Hold this many bytes, at most `user_bytes`, until the end of the block.

        Waits while others hold them; raises Unavailable after `wait_s`.
        """
        with trio.move_on_after(self._wait_s) as waiting:
            while not self._is_free(user, size_bytes):
                await self._freed.wait()
        if waiting.cancelled_caught:
            raise Unavailable(
                f"uploads of user {user} or of all users take the {format_size(self._total_bytes)} "
                "that this server has for them; try again later"
            )
        self._held[user] += size_bytes
        try:
            yield
        finally:
            self._held[user] -= size_bytes
            self._held += Counter()  # drops those at zero
            self._freed.set()
            self._freed = trio.Event()

    def _is_free(self, user: str, size_bytes: int) -> bool:
        return (
            self._held.total() + size_bytes <= self._total_bytes
            and self._held[user] + size_bytes <= self._user_bytes
        )
