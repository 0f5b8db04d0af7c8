"""Chunks in passing: they are here until all who need them have had them. No I/O.

When room is needed, those go first of which all bytes have been handed out, for nobody will come for them in this
epoch; then those that were used longest ago.
"""

from collections import OrderedDict
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dieselfs.cache.segment import Segment
from dieselfs.meta.snapshot import Snapshot

Ranges = npt.NDArray[np.int64]
"""Pairs of offset and length within a payload."""

_BLOCK_EXTENTS = 1 << 20
"""Extents that are counted together: a snapshot may have many million."""


class Transit:
    """At most `bytes_max` of chunks, or one that is larger. Used from one thread."""

    def __init__(self, snapshot: Snapshot, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._snapshot = snapshot
        self._segments: OrderedDict[int, Segment] = OrderedDict()  # the last used at the end
        self._handed: dict[int, Ranges] = {}  # out in this epoch
        self._finished: dict[int, None] = {}  # of which all has been handed out, in that order

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._segments

    def get(self, chunk: int) -> Segment | None:
        """A chunk if it is here; counts as a use."""
        segment = self._segments.get(chunk)
        if segment is not None:
            self._segments.move_to_end(chunk)
        return segment

    def add(self, chunk: int, segment: Segment) -> None:
        """One that has come, and is not here yet; others make room for it."""
        self.bytes += len(segment)
        while self.bytes > self.bytes_max and self._segments:
            self.take(next(iter(self._finished or self._segments)))
        self._segments[chunk] = segment

    def take(self, chunk: int) -> Segment | None:
        """A chunk, if it is here; it is not any more."""
        segment = self._segments.pop(chunk, None)
        if segment is not None:
            self.bytes -= len(segment)
            self._handed.pop(chunk, None)
            self._finished.pop(chunk, None)
        return segment

    def handed_out(self, chunk: int, ranges: Ranges) -> None:
        """Somebody has got pieces of a chunk, which nobody else wants in this epoch: whoever comes for one of them once
        more belongs to the next, and it counts from the beginning.
        """
        if chunk not in self._segments:
            return
        before = self._handed.get(chunk, ranges[:0])
        is_next_epoch = len(np.intersect1d(before[:, 0], ranges[:, 0])) > 0
        handed = self._handed[chunk] = ranges if is_next_epoch else np.concatenate((before, ranges))
        self._finished.pop(chunk, None)
        if handed[:, 1].sum() >= self._live_bytes[chunk]:
            self._finished[chunk] = None

    @cached_property
    def _live_bytes(self) -> npt.NDArray[np.int64]:
        """Of each chunk, those that belong to files of the snapshot. About 10 ms for each million files, once."""
        chunks, lengths = self._snapshot.column("extent_chunks"), self._snapshot.column("extent_lengths")
        live_bytes = np.zeros(self._snapshot.chunk_count, np.int64)
        for first in range(0, len(chunks), _BLOCK_EXTENTS):
            block = slice(first, first + _BLOCK_EXTENTS)
            live_bytes += np.bincount(chunks[block], lengths[block], len(live_bytes)).astype(np.int64)
        return live_bytes
