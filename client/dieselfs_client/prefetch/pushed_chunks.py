"""The pinned chunks that were pushed into the page cache, and when one may be pushed again. No I/O.

The kernel reclaims pages without notice. The only sign is a read for a file of a chunk that was pushed.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.cluster.warmth import Warmth

PUSHED_AGAIN_S = 1.0
PUSHED_AGAIN_MAX_S = 60.0
"""The first pause before a chunk is fetched to be pushed again, and the last: it doubles each time, as pages that the
kernel reclaims at once are not worth it. A chunk of which much is requested is fetched sooner.
"""


@dataclass(frozen=True, slots=True)
class _Push:
    """When a chunk was last pushed, and the pause until it may be pushed again."""

    at_s: float
    again_after_s: float


class PushedChunks:
    """`chunks`: of the dataset; `clock` is in seconds."""

    def __init__(self, chunks: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_here = np.zeros(chunks, np.bool_)
        self._pushes: dict[int, _Push] = {}

    def is_here(self, chunk: int) -> bool:
        """Whether a chunk was pushed, by this daemon or by one before."""
        return bool(self._is_here[chunk])

    def is_due(self, chunk: int) -> bool:
        """Whether to fetch and push all of a chunk because a reader waits for a file of it."""
        push = self._pushes.get(chunk)
        return push is None or self._clock() >= push.at_s + push.again_after_s

    def was_just_pushed(self, chunk: int) -> bool:
        """Whether it is too soon to push a chunk that was fetched for a reader."""
        push = self._pushes.get(chunk)
        return push is not None and self._clock() < push.at_s + PUSHED_AGAIN_S

    def push(self, chunk: int) -> bool:
        """A chunk is about to be pushed; whether it was before, so that the kernel has reclaimed pages."""
        before = self._pushes.get(chunk)
        again_after_s = (
            PUSHED_AGAIN_S if before is None else min(2 * before.again_after_s, PUSHED_AGAIN_MAX_S)
        )
        self._pushes[chunk] = _Push(self._clock(), again_after_s)
        self._is_here[chunk] = True
        return before is not None

    def restore(self, chunk: int) -> None:
        """A previous daemon has pushed a chunk, at an unknown time."""
        self._is_here[chunk] = True

    def warmth(
        self, page_bytes: npt.NDArray[np.int64], pinned_max_bytes: int, damaged: Collection[int]
    ) -> Warmth:
        """How much is in the page cache of what can be: of `pinned_max_bytes`, and each chunk has `page_bytes`."""
        is_lacking = ~self._is_here
        is_lacking[np.fromiter(damaged, np.int64)] = False
        pinned_bytes = int(page_bytes[self._is_here].sum())
        return Warmth.of(pinned_bytes, pinned_max_bytes, page_bytes[is_lacking], len(damaged))
