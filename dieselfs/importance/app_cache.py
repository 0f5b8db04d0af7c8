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
        self._is_cached = np.zeros(samples, np.bool_)
        self._count = 0
        # Score, count, sample; stale unless they are the present ones.
        self._queue: list[tuple[int, int, int]] = []

    def __contains__(self, sample: int) -> bool:
        return bool(self._is_cached[sample])

    def __len__(self) -> int:
        return self._count

    def samples(self) -> Numbers:
        """The cached samples, ascending."""
        return np.flatnonzero(self._is_cached)

    def mask(self) -> npt.NDArray[np.bool_]:
        """For each sample, whether it is cached."""
        return self._is_cached.copy()

    def access(self, sample: int) -> CacheAccess:
        """A sample is read."""
        if sample in self:
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
        for sample in samples[self._is_cached[samples]].tolist():
            self._push(sample)
        if len(self._queue) > 2 * self._count + _STALE_MIN:
            self._queue_again()

    def drop(self, sample: int) -> None:
        """A cached sample leaves the cache."""
        self._is_cached[sample] = False
        self._count -= 1
        self.used -= self._size(sample)

    def restore(self, samples: Iterable[int]) -> None:
        """Fill an empty cache with samples, as far as they fit."""
        for sample in samples:
            if sample not in self and self.used + self._size(sample) <= self.capacity:
                self._place(sample)
        self._queue_again()

    def _queue_again(self) -> None:
        cached = self.samples()
        columns = self.scores[cached], self.counts[cached], cached
        self._queue = [*zip(*(column.tolist() for column in columns), strict=True)]
        heapq.heapify(self._queue)

    def _size(self, sample: int) -> int:
        return 1 if self.sizes is None else int(self.sizes[sample])

    def _entry(self, sample: int) -> tuple[int, int, int]:
        return int(self.scores[sample]), int(self.counts[sample]), sample

    def _push(self, sample: int) -> None:
        heapq.heappush(self._queue, self._entry(sample))

    def _add(self, sample: int) -> None:
        self._place(sample)
        self._push(sample)

    def _place(self, sample: int) -> None:
        self._is_cached[sample] = True
        self._count += 1
        self.used += self._size(sample)

    def _least(self, sample: int, needed: int) -> tuple[int, ...] | None:
        """The least important samples that together have `needed`; None if one of them is more important than the
        sample, or its score is not known.
        """
        score, victims, freed = int(self.scores[sample]), [], 0
        while score and freed < needed and self._queue:
            entry = heapq.heappop(self._queue)
            victim = entry[2]
            if victim not in self or entry != self._entry(victim) or victim in victims:
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
