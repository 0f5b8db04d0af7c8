"""The optimisations of LMDBIO in the path of a request to the store. A server has all; measurements leave some out.

"Scalable Deep Learning via I/O Analysis and Optimization" (Pumma et al., TOPC 2019), section 4, has six. Three are ways
of the store, and here. A reader chooses the others by what it calls: one reader for a node (`share_payloads`), direct
placement (`open_payload`), and provenance (a snapshot, which has the place of each byte). No I/O.
"""

import math
from dataclasses import dataclass

from dieselfs_server.reading.ranges import GAP_BYTES_MAX
from dieselfs_server.store.limited import Bounds

STORE_READS_MAX = 32
"""Limit of chunks that are being read, over all clients. It exceeds the store's limit of large reads, so that small
ones can overtake them."""

_NO_MERGE = -1
_UNBOUNDED = 1 << 20


@dataclass(frozen=True, slots=True)
class RequestPath:
    """- `is_coalescing`: ranges that are close together, also of several requests, become one read
    - `is_staggering`: few large reads at a time, the others wait for their turn
    - `is_bounded`: limited reads of any size at a time
    """

    is_coalescing: bool = True
    is_staggering: bool = True
    is_bounded: bool = True

    @property
    def gap_bytes_max(self) -> int:
        """For `merge_ranges`."""
        return GAP_BYTES_MAX if self.is_coalescing else _NO_MERGE

    @property
    def chunks_max(self) -> float:
        """How many chunks may be read at the same time."""
        return STORE_READS_MAX if self.is_bounded else math.inf

    @property
    def bounds(self) -> Bounds:
        """Of each store."""
        usual = Bounds()
        reads_max = usual.reads_max if self.is_bounded else _UNBOUNDED
        return Bounds(reads_max, usual.large_reads_max if self.is_staggering else reads_max)
