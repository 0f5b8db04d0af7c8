"""Counts the files of plans that were read from the page cache, and those that the daemon answered. No I/O.

Reads from the page cache are invisible. But tripwires show which files a reader has passed, and those that were not
requested from the daemon since the reader began were in the page cache.
"""

import numpy as np
import numpy.typing as npt

from dieselfs.metrics import Registry


class HitRate:
    """`nodes`: of the snapshot; 4 bytes for each. Files after a reader's last tripwire are counted at the next one."""

    def __init__(self, nodes: int, metrics: Registry | None = None) -> None:
        metrics = metrics or Registry()
        self._files = metrics.counter("page_cache.planned_files", "Planned files read: hits and misses.")
        self._hits = metrics.counter("page_cache.hits", "Planned files found in the page cache.")
        self._misses = metrics.counter("page_cache.misses", "Planned files that the daemon had to answer.")
        self._readers = 0
        self._requested = np.zeros(nodes, np.uint32)  # how many readers had begun at the last request

    def begin(self) -> int:
        """A reader begins; its number."""
        self._readers += 1
        return self._readers

    def requested(self, node: int) -> None:
        """A file was requested from the daemon."""
        self._requested[node] = self._readers

    def passed(self, reader: int, nodes: npt.NDArray[np.integer]) -> None:
        """The reader with this number has read these files."""
        requested = int((self._requested[nodes] >= reader).sum())
        self._files.value += len(nodes)
        self._misses.value += requested
        self._hits.value += len(nodes) - requested
