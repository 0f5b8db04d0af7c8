"""Policies of caches of samples, as simulations that count hits: those that SHADE is compared with. No I/O.

All but the functions have `access(sample)`: whether the sample is in the cache. It may admit the sample.
"""

import heapq
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from random import Random


class Lru:
    """Evicts the least recently used sample."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.cached: OrderedDict[int, None] = OrderedDict()

    def access(self, sample: int) -> bool:
        if sample in self.cached:
            self.cached.move_to_end(sample)
            return True
        self.cached[sample] = None
        if len(self.cached) > self._capacity:
            self.cached.popitem(last=False)
        return False


class NeverEvict:
    """The first samples stay: CoorDL's MinIO."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.cached: set[int] = set()

    def access(self, sample: int) -> bool:
        if sample in self.cached:
            return True
        if len(self.cached) < self._capacity:
            self.cached.add(sample)
        return False


class RandomEviction:
    """Evicts any sample."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self._capacity = capacity
        self._random = Random(seed)
        self._samples: list[int] = []
        self.cached: set[int] = set()

    def access(self, sample: int) -> bool:
        if sample in self.cached:
            return True
        if len(self._samples) < self._capacity:
            self._samples.append(sample)
        elif self._samples:
            place = self._random.randrange(len(self._samples))
            self.cached.remove(self._samples[place])
            self._samples[place] = sample
        else:
            return False
        self.cached.add(sample)
        return False


class Priority:
    """Always admits, and evicts the sample with the lowest score; among equal ones that which was used least, then
    longest ago. Without scores this is LFU. `uses_frequency` False: the frequency does not count.
    """

    def __init__(self, capacity: int, uses_frequency: bool = True) -> None:
        self._capacity = capacity
        self._uses_frequency = uses_frequency
        self._scores: defaultdict[int, float] = defaultdict(float)
        self._uses: Counter[int] = Counter()
        self._time = 0
        self.cached: dict[int, tuple[float, int, int]] = {}
        self._queue: list[tuple[tuple[float, int, int], int]] = []

    def access(self, sample: int) -> bool:
        is_hit = sample in self.cached
        self._time += 1
        self._uses[sample] += self._uses_frequency
        if not is_hit and len(self.cached) >= self._capacity:
            if not self._capacity:
                return False
            while True:
                key, victim = heapq.heappop(self._queue)
                if self.cached.get(victim) == key:
                    del self.cached[victim]
                    break
        self._place(sample)
        return is_hit

    def update(self, samples: Iterable[int], score: float) -> None:
        for sample in samples:
            self._scores[sample] = score
            if sample in self.cached:
                self._place(sample)

    def _place(self, sample: int) -> None:
        key = self.cached[sample] = self._scores[sample], self._uses[sample], self._time
        heapq.heappush(self._queue, (key, sample))


def min_hits(samples: Sequence[int], capacity: int) -> list[bool]:
    """Belady's MIN, which knows all accesses: evicts the sample that is used again last, or does not admit."""
    following: list[float] = [inf] * len(samples)
    seen: dict[int, int] = {}
    for place in range(len(samples) - 1, -1, -1):
        following[place] = seen.get(samples[place], inf)
        seen[samples[place]] = place
    next_use: dict[int, float] = {}
    queue: list[tuple[float, int]] = []  # the next use, negative
    hits = []
    for place, sample in enumerate(samples):
        hits.append(sample in next_use)
        if not hits[-1] and len(next_use) >= capacity:
            while queue and next_use.get(queue[0][1]) != -queue[0][0]:
                heapq.heappop(queue)
            if not queue or -queue[0][0] <= following[place]:
                continue
            del next_use[heapq.heappop(queue)[1]]
        next_use[sample] = following[place]
        heapq.heappush(queue, (-following[place], sample))
    return hits


def quiver_hits(samples: Sequence[int], cached: set[int], capacity: int) -> list[bool]:
    """One epoch of Quiver, emulated as SHADE does it: in place of a sample that is missing, a cached one is served that
    was not yet served in this epoch. What was missing comes later. `cached` is filled, and nothing is evicted.
    """
    waiting = sorted(cached)
    served: Counter[int] = Counter()
    hits = []
    for sample in samples:
        if sample in cached and not served[sample]:
            served[sample] += 1
            hits.append(True)
            continue
        while waiting and served[waiting[-1]]:
            waiting.pop()
        if waiting:
            served[waiting.pop()] += 1
            hits.append(True)
            continue
        hits.append(False)
        if len(cached) < capacity:
            cached.add(sample)
            served[sample] += 1
    return hits


def nopfs_hits(epochs: Sequence[Sequence[int]], capacity: int, nodes: int = 1) -> list[list[bool]]:
    """NoPFS, which knows the order of all epochs: each node, with a part of the capacity, keeps the samples that it
    will use most often, of equal ones those that it uses first. A sample that another node keeps comes from there, and
    is a hit too. In its first use a sample comes from the store. Each epoch is dealt to the nodes in turn.
    """
    kept: set[int] = set()
    for node in range(nodes):
        uses = Counter(sample for epoch in epochs for sample in epoch[node::nodes])
        kept.update(sample for sample, _ in uses.most_common(capacity // nodes))
    seen: set[int] = set()
    hits = []
    for epoch in epochs:
        hits.append([sample in kept and sample in seen for sample in epoch])
        seen.update(epoch)
    return hits
