"""Memory that the chunk cache borrows from parts of the budget that do not use it.

Without a plan, the window is free. Chunks that are read at random and not pinned stay there until a plan begins.

The kernel may reclaim the pages of a pinned chunk again and again: in a control group, on a busy node. If the daemon
kept nothing, it would fetch the chunk each time. Its part of the memory is free then, so the chunk stays here, and is
served from here, until no reader has asked for anything for LENT_S. Chunks that stay are no larger together than the
pinned part of the budget: it counts the pages of files, but a chunk also has bytes of files that were deleted.
"""

from collections.abc import Callable

import trio

from dieselfs_client.memory.chunk_cache import ChunkCache

LENT_S = 30.0


class Lending:
    """Used from one trio thread; its task runs in `nursery`. `length_bytes` returns the length of a chunk;
    `pinned_bytes` is the pinned part of the budget; `clock` is in seconds.
    """

    def __init__(
        self,
        chunk_cache: ChunkCache,
        length_bytes: Callable[[int], int],
        pinned_bytes: int,
        nursery: trio.Nursery,
        clock: Callable[[], float],
    ) -> None:
        self._chunk_cache = chunk_cache
        self._length_bytes = length_bytes
        self._pinned_bytes = pinned_bytes
        self._nursery = nursery
        self._clock = clock
        self._lent: set[int] = set()
        self._lent_bytes = 0
        self._window_bytes = 0
        self._read_s = 0.0

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._lent

    def lend(self, chunk: int) -> None:
        """Give a chunk the room to stay in memory, in addition to the others, if the pinned part has it."""
        lent_bytes = self._lent_bytes + self._length_bytes(chunk)
        if chunk not in self._lent and lent_bytes <= self._pinned_bytes:
            if not self._lent:
                self._nursery.start_soon(self._end)
            self._lent.add(chunk)
            self._lent_bytes = lent_bytes
            self._apply()
        self.note_read()

    def lend_window(self, length_bytes: int) -> None:
        """Give all chunks this much of the window, and take back the rest."""
        if length_bytes != self._window_bytes:
            self._window_bytes = length_bytes
            self._apply()

    def _apply(self) -> None:
        self._chunk_cache.lend(self._lent_bytes + self._window_bytes)

    def note_read(self) -> None:
        """A reader asked the daemon for a file, so the kernel did not have it."""
        if self._lent:
            self._read_s = self._clock()

    async def _end(self) -> None:
        while (left_s := self._read_s + LENT_S - self._clock()) > 0:
            await trio.sleep(left_s)
        self._lent.clear()
        self._lent_bytes = 0
        self._apply()
