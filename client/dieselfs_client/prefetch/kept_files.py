"""The important files: those of orders by importance that stay in the page cache behind their readers.

`ScoredFiles.read` chooses them, by the rule of the sampler's cache. Memory for pinned chunks is theirs from the first
such order on, if it is less than the dataset: chunks that were pinned become files of the cache.
"""

import numpy as np

from dieselfs.arrays import Numbers, distinct
from dieselfs.importance.scored_files import ScoredFiles
from dieselfs.prefetch.extent_table import PAGE_BYTES, Extents, ExtentTable
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.prefetch.budget import PrefetchBudget
from dieselfs_client.prefetch.tripwires import Tripwires


class KeptFiles:
    """Used from one trio thread."""

    def __init__(
        self, table: ExtentTable, budget: PrefetchBudget, tripwires: Tripwires, allotment: Allotment
    ) -> None:
        self._table, self._budget, self._tripwires = table, budget, tripwires
        self._pinned_bytes = allotment.pinned
        self.scored: ScoredFiles | None = None
        """Set before the first order by importance."""
        self._is_begun = False

    def begin(self) -> Extents:
        """An order by importance is about to be read; returns extents to drop."""
        table, budget, scored = self._table, self._budget, self.scored
        nothing = table.of_numbers(np.empty(0, np.int64))
        if self._is_begun or scored is None or self._pinned_bytes >= table.total_page_bytes:
            return nothing
        self._is_begun = True
        chunks = budget.pinned()
        pinned = Extents.joined([nothing, *map(table.of_chunk, chunks)])
        pages = table.page_bytes(np.arange(len(table.snapshot))) // PAGE_BYTES
        left = np.array(scored.left, np.int64)
        first = distinct(np.concatenate([pinned.nodes[budget.is_stored(pinned)], left]))
        kept = table.of_files(scored.keep(self._pinned_bytes // PAGE_BYTES, pages, first.tolist()))
        dropped = budget.unpin(chunks, kept)
        budget.keep(kept)
        # The bytes of tripwires are lost with the daemon that had them.
        budget.restore_stored(kept[np.isin(kept.nodes, left) & ~self._tripwires.among(kept.nodes)])
        return dropped

    def passed(self, nodes: Numbers) -> Extents:
        """The readers of an order by importance have read files, in this order, which a plan still holds. Returns the
        extents to drop: of files that made room for them.
        """
        table, budget, scored = self._table, self._budget, self.scored
        if not self._is_begun or scored is None:
            return table.of_numbers(np.empty(0, np.int64))
        released = scored.read(nodes)
        budget.keep(table.of_files(distinct(nodes[~np.isin(nodes, released)])))
        return budget.unkeep(table.of_files(released))
