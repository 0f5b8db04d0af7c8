"""Reclaimed pages: which stored extents to look at, to find the chunks that the kernel has reclaimed. No I/O.

The kernel reclaims pages without notice. It takes the oldest first, so the pages of one push go together, and a few
extents tell of all that were pushed with them.
"""

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.prefetch.extent_table import Extents

SAMPLES_PER_CHUNK = 4
"""Extents of a chunk that are looked at: the first, the last, and some between. Each takes about 15 us."""
CHUNKS_AT_ONCE = 256
"""Chunks that are looked at with one order. If nothing is lost in as many, spread over the memory, others are not
looked at.
"""
LOOK_AGAIN_S = 1.0
"""The shortest time between two looks without a new plan."""


def sampled(extents: Extents) -> Extents:
    """Up to SAMPLES_PER_CHUNK extents of each chunk, at equal distances."""
    order = np.lexsort((extents.offsets, extents.chunks))
    firsts = np.flatnonzero(np.diff(extents.chunks[order], prepend=-1))
    lasts = np.append(firsts[1:], len(order))[: len(firsts)] - 1
    steps = np.arange(SAMPLES_PER_CHUNK)[:, None]
    places = firsts + (lasts - firsts) * steps // (SAMPLES_PER_CHUNK - 1)
    return extents[order[np.unique(places)]]


def spread(chunks: Numbers, turn: int) -> Numbers:
    """CHUNKS_AT_ONCE of these chunks at equal distances; others at the next `turn`."""
    step = -(-len(chunks) // CHUNKS_AT_ONCE)
    return chunks[turn % step :: step] if step else chunks
