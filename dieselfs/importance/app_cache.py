"""Which samples a cache keeps: SHADE's adaptive priority-aware prediction (APP, algorithm 1). No I/O.

A priority queue has the cached samples by score, then by how often they were scored, then by number. The scores of all
other samples are known, too (the ghost cache). A full cache takes a sample only if its score is known, and at least
that of the least important cached sample, which is evicted for it.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.importance.scores import Scores

_STALE_MIN = 64
"""The queue is made again when it has more stale entries than this, and than the cache has samples."""


class CacheAccess(NamedTuple):
    """What an access did. `is_kept`: the sample is in the cache now. `evicted`: samples that made room for it."""

    is_hit: bool
    is_kept: bool
    evicted: tuple[int, ...] = ()


class AppCache:
    """Used by one thread. `used` never exceeds `capacity`; both are in samples, or in bytes if sizes are given."""

    def __init__(self, samples: int, capacity: int, sizes: Numbers | None = None) -> None:
        """`samples`: how many there are; `sizes`: shape (samples,), in bytes."""
        self.capacity = capacity
        self.used = 0
        self.scores: Scores = np.zeros(samples, np.uint32)
        self.counts: npt.NDArray[np.uint32] = np.zeros(samples, np.uint32)
        """How often each sample was scored."""
        self.sizes = sizes
        self._cached: dict[int, None] = {}
        # Score, count, sample; stale unless they are the present ones.
        self._queue: list[tuple[int, int, int]] = []

    def __contains__(self, sample: int) -> bool:
        return sample in self._cached

    def __len__(self) -> int:
        return len(self._cached)

    def samples(self) -> Numbers:
        """The cached samples, ascending."""
        return np.array(sorted(self._cached), np.int64)

    def mask(self) -> npt.NDArray[np.bool_]:
        """For each sample, whether it is cached."""
        found = np.zeros(len(self.scores), np.bool_)
        found[self.samples()] = True
        return found

    def access(self, sample: int) -> CacheAccess:
        """A sample is read."""
        if sample in self._cached:
            return CacheAccess(True, True)
        needed = self.used + self._size(sample) - self.capacity
        evicted = self._least(sample, needed) if needed > 0 else ()
        if evicted is None:
            return CacheAccess(False, False)
        for victim in evicted:
            self.drop(victim)
        self._add(sample)
        return CacheAccess(False, True, evicted)

    def update(self, samples: Numbers, scores: Scores) -> None:
        """New scores of samples; of a sample that comes twice, the last one counts."""
        self.scores[samples] = scores
        np.add.at(self.counts, samples, 1)
        for sample in filter(self._cached.__contains__, samples.tolist()):
            self._push(sample)
        if len(self._queue) > 2 * len(self._cached) + _STALE_MIN:
            self._queue = [self._entry(sample) for sample in self._cached]
            heapq.heapify(self._queue)

    def drop(self, sample: int) -> None:
        """A cached sample leaves the cache."""
        del self._cached[sample]
        self.used -= self._size(sample)

    def restore(self, samples: Iterable[int]) -> None:
        """Fill an empty cache with samples, as far as they fit."""
        for sample in samples:
            if self.used + self._size(sample) <= self.capacity:
                self._add(sample)

    def _size(self, sample: int) -> int:
        return 1 if self.sizes is None else int(self.sizes[sample])

    def _entry(self, sample: int) -> tuple[int, int, int]:
        return int(self.scores[sample]), int(self.counts[sample]), sample

    def _push(self, sample: int) -> None:
        heapq.heappush(self._queue, self._entry(sample))

    def _add(self, sample: int) -> None:
        self._cached[sample] = None
        self.used += self._size(sample)
        self._push(sample)

    def _least(self, sample: int, needed: int) -> tuple[int, ...] | None:
        """The least important samples that together have `needed`; None if one of them is more important than the
        sample, or its score is not known.
        """
        score, victims, freed = int(self.scores[sample]), [], 0
        while score and freed < needed and self._queue:
            entry = heapq.heappop(self._queue)
            victim = entry[2]
            if victim not in self._cached or entry != self._entry(victim) or victim in victims:
                continue
            if entry[0] > score:
                heapq.heappush(self._queue, entry)
                break
            victims.append(victim)
            freed += self._size(victim)
        if freed >= needed:
            return tuple(victims)
        for victim in victims:
            self._push(victim)
        return None
