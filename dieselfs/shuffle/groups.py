"""How the chunks of an epoch are cut into groups (`docs/reference/order.md`, "Groups that grow"). No I/O.

Groups of equal size make the first batch wait for a whole group. So the default groups grow from the start of an epoch:
the first one is read in some milliseconds, while the next is fetched. The last group is never a small rest, because an
epoch that ends with the files of few chunks ends with few classes of a dataset that was stored class by class.
"""

import numpy as np

from dieselfs.arrays import Numbers

GROWTH_CHUNKS = (4, 8, 16)
"""The first groups, while GROWTH_LEFT_CHUNKS are left after them."""
GROWTH_LEFT_CHUNKS = 16
GROWN_CHUNKS = 25
"""The size of the groups after these: about this, so that all are equal."""
GROWN_CHUNKS_MAX = 37
"""The largest default group."""


def group_ends(chunks: int, group_chunks: int | None) -> Numbers:
    """The end of each group, as a place in the order of `chunks` (at least 1): shape (groups,), ascending.

    `group_chunks`: chunks of each group, 0 for all, None for the default.
    """
    if group_chunks is None:
        return _growing(chunks)
    size = min(group_chunks or chunks, chunks)
    return np.append(np.arange(size, chunks, size), chunks)


def _growing(chunks: int) -> Numbers:
    ends = [0]
    for size in GROWTH_CHUNKS:
        if chunks - ends[-1] - size < GROWTH_LEFT_CHUNKS:
            break
        ends.append(ends[-1] + size)
    left = chunks - ends[-1]
    groups = max((left + GROWN_CHUNKS // 2) // GROWN_CHUNKS, 1)
    return np.append(ends[1:], ends[-1] + (np.arange(1, groups + 1) * left) // groups).astype(np.int64)
