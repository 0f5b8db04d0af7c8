"""Which extents the prefetcher has stored in the page cache, for which reason, and their memory. No I/O.

An extent is stored for one of two reasons: its chunk is *pinned*, or plans *hold* it for a while. Never for both.
"""

import numpy as np
import numpy.typing as npt

from dieselfs_client.memory.budget import Allotment
from dieselfs_client.prefetch.extent_table import Extents, ExtentTable


class PrefetchBudget:
    """Bytes are counted in whole pages, as the page cache takes them."""

    def __init__(self, table: ExtentTable, extents: int, chunks: int, allotment: Allotment) -> None:
        self.pinned_bytes = 0
        self.window_bytes = 0
        self._table = table
        self._allotment = allotment
        self._is_pinned = np.zeros(chunks, np.bool_)
        self._is_stored = np.zeros(extents, np.bool_)
        self._is_charged = np.zeros(extents, np.bool_)
        self._holders = np.zeros(extents, np.uint16)

    # -- for good ----------------------------------------------------------------------------------------

    def is_pinned(self, chunk: int) -> bool:
        return bool(self._is_pinned[chunk])

    def pinned(self) -> list[int]:
        """The chunks that are pinned."""
        chunks: list[int] = np.flatnonzero(self._is_pinned).tolist()
        return chunks

    def can_pin(self, chunk: int) -> bool:
        """Whether `pin` would take it."""
        if self._is_pinned[chunk] or self.pinned_bytes >= self._allotment.pinned:
            return bool(self._is_pinned[chunk])
        return self.pinned_bytes + int(self._table.chunk_page_bytes()[chunk]) <= self._allotment.pinned

    def pin(self, chunk: int) -> bool:
        """Pin a chunk if there is room; whether it is pinned now."""
        if self._is_pinned[chunk]:
            return True
        if not self.can_pin(chunk):
            return False
        extents = self._table.of_chunk(chunk)
        self.pinned_bytes += extents.page_bytes()
        self._uncharge(extents)
        self._holders[extents.numbers] = 0
        self._is_pinned[chunk] = True
        return True

    # -- for plans ---------------------------------------------------------------------------------------

    def hit_bytes(self, extents: Extents) -> int:
        """How much of some extents is pinned and stored."""
        is_hit = self._is_pinned[extents.chunks] & self._is_stored[extents.numbers]
        return extents[is_hit].page_bytes()

    def hold(self, extents: Extents) -> Extents:
        """One more plan holds extents; returns those that are neither stored nor in flight for another plan."""
        self._holders[extents[~self._is_pinned[extents.chunks]].numbers] += 1
        return extents[self._is_missing(extents)]

    def _is_missing(self, extents: Extents) -> npt.NDArray[np.bool_]:
        is_missing: npt.NDArray[np.bool_] = (
            ~self._is_charged[extents.numbers] & ~self._is_stored[extents.numbers]
        )
        return is_missing

    def has_room(self, page_bytes: int) -> bool:
        """Whether the window has room for this; an empty one always has."""
        return not self.window_bytes or self.window_bytes + page_bytes <= self._allotment.window

    def charge(self, extents: Extents) -> Extents:
        """Count extents that a plan is about to fetch; returns them, without those that were released, or that another
        plan has begun to fetch since they were held.
        """
        extents = extents[(self._holders[extents.numbers] > 0) & self._is_missing(extents)]
        self._is_charged[extents.numbers] = True
        self.window_bytes += extents.page_bytes()
        return extents

    def release(self, extents: Extents) -> Extents:
        """A plan no longer needs extents; returns those to be dropped, which no other plan holds."""
        extents = extents[self._holders[extents.numbers] > 0]
        self._holders[extents.numbers] -= 1
        extents = extents[self._holders[extents.numbers] == 0]
        self._uncharge(extents)
        extents = extents[self._is_stored[extents.numbers]]
        self._is_stored[extents.numbers] = False
        return extents

    def _uncharge(self, extents: Extents) -> None:
        extents = extents[self._is_charged[extents.numbers]]
        self._is_charged[extents.numbers] = False
        self.window_bytes -= extents.page_bytes()

    # -- what is there -----------------------------------------------------------------------------------

    def is_wanted(self, extents: Extents) -> npt.NDArray[np.bool_]:
        """Which of some extents are pinned, or held by a plan."""
        is_wanted: npt.NDArray[np.bool_] = self._is_pinned[extents.chunks] | (
            self._holders[extents.numbers] > 0
        )
        return is_wanted

    def put(self, extents: Extents) -> npt.NDArray[np.bool_]:
        """Extents have arrived: which of them are to be stored, because they are wanted and not stored yet."""
        is_new: npt.NDArray[np.bool_] = self.is_wanted(extents) & ~self._is_stored[extents.numbers]
        self._is_stored[extents.numbers[is_new]] = True
        return is_new

    def lose(self, extents: Extents) -> None:
        """The kernel has reclaimed the pages of extents."""
        self._is_stored[extents.numbers] = False
