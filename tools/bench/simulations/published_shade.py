"""The sampler and the cache of SHADE as published (R-I-S-Khan/SHADE, commit b20454d), for comparison only. No I/O.

Both behave like that code, not like its paper, except that the caller gives the random numbers. Known differences:
losses are attributed to the places of the raw draw, not to the samples that were served; each rank draws its own order,
so ranks overlap; all cached samples come first; with enough of them, no others come at all; eviction wants a strictly
greater score, and a sample whose score is not known never evicts.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from math import ceil, exp
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.importance.scores import RANK_BIAS, Losses, checked_losses

_FIRST_CHANGE = 100.0
"""The change of accuracy before one was reported: so every epoch after the first is aggressive without validation."""
_SMOOTHING_SHARE = 0.01
_HEADROOM = 50
"""Keys that the cache counts beside those that it has."""


class PublishedSampler:
    """The sampler of one rank, which has its own random numbers and order."""

    def __init__(
        self,
        samples: int,
        batch: int,
        random: np.random.Generator,
        rank: int = 0,
        ranks: int = 1,
        repeats: float = 3.0,
    ) -> None:
        """`batch`: samples of a batch of this rank."""
        self.weights = np.ones(samples)
        self.epoch = 0
        self.change = _FIRST_CHANGE
        """The mean of the last differences of the validation accuracy."""
        self._batch, self._random, self._repeats = batch, random, repeats
        self._rank, self._ranks = rank, ranks
        self._place = 0
        self._smoothing = 0.0
        self._loss: float | None = None
        self._batch_weights = np.log(np.arange(batch) + RANK_BIAS)
        self._raw: Numbers = np.zeros(0, np.int64)

    def draw(self, cached: npt.NDArray[np.bool_]) -> list[int]:
        """The order of an epoch. `cached`: by sample, as at its beginning."""
        count, share = len(self.weights), ceil(len(self.weights) / self._ranks)
        chances = self.weights + self._smoothing
        self._raw = self._random.choice(count, count, p=chances / chances.sum())
        order: list[int] = self._raw.tolist()
        is_aggressive = self.epoch > 0 and self.change > 0
        if self.epoch == 0:
            self._random.shuffle(order)
        if is_aggressive:
            frequency = Counter(order)
            order.sort(key=lambda sample: (-frequency[sample], sample))
        order += order[: share * self._ranks - count]
        if is_aggressive:
            order = order[:share]
            self._random.shuffle(order)
        else:
            order = order[self._rank : share * self._ranks : self._ranks]
        hits = [sample for sample in order if cached[sample]]
        misses = [sample for sample in order if not cached[sample]]
        whole = int(self._repeats)
        repeated = hits * whole + (hits[: len(hits) // 2] if self._repeats > whole else [])
        left = len(order) - len(repeated)
        self._random.shuffle(repeated)
        self._random.shuffle(misses)
        return (repeated + misses[:left])[:share]

    def record(self, losses: Losses) -> tuple[list[int], list[float]]:
        """The losses of the next batch; the samples whose weights were set, and their weights."""
        touched = self._raw[self._place + np.argsort(losses, kind="stable")]
        weights = self._batch_weights[: len(losses)]
        self.weights[touched] = weights
        self._place += self._batch
        return touched.tolist(), weights.tolist()

    def end_epoch(self, mean_loss: float) -> None:
        if self._loss is None:
            self._smoothing = _SMOOTHING_SHARE * mean_loss
        else:
            self._smoothing *= exp((mean_loss - self._loss) / self._loss)
        self._loss, self._place = mean_loss, 0
        self.epoch += 1


class PublishedCache:
    """The cache of one process. It counts its keys once for each batch, so a batch may exceed the capacity."""

    def __init__(self, samples: int, capacity: int) -> None:
        self.capacity = capacity
        self.cached = np.zeros(samples, np.bool_)
        self.keys = 0
        """As counted before the present batch."""
        self._queue: dict[int, tuple[float, int]] = {}
        self._heap: list[tuple[tuple[float, int], int]] = []  # entries of the queue, and stale ones
        self._ghost: dict[int, tuple[float, int]] = {}

    def access(self, sample: int) -> bool:
        """Whether it is a hit; a miss may be stored."""
        if self.cached[sample]:
            return True
        keys = self.keys + _HEADROOM
        if keys >= self.capacity and sample in self._ghost and self._queue:
            while self._queue.get(self._heap[0][1]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            least = self._heap[0][1]
            if self._ghost[sample] > self._queue[least]:
                del self._queue[least]
                self.cached[least] = False
                keys -= 1
        if keys < self.capacity:
            self.cached[sample] = True
        return False

    def end_batch(self, touched: list[int], weights: list[float]) -> None:
        """New weights after a batch."""
        for sample, weight in zip(touched, weights, strict=True):
            count = self._ghost.get(sample, (0.0, 0))[1] + 1
            self._ghost[sample] = (weight, count)
            if self.cached[sample]:
                self._queue[sample] = weight, count
                heapq.heappush(self._heap, ((weight, count), sample))
        self.keys = int(np.count_nonzero(self.cached))


class PublishedReader:
    """Sampler and cache of one rank, with the steps of `RankReader`. It cannot resume."""

    def __init__(
        self,
        samples: int,
        batch: int,
        seed: int = 0,
        capacity: int = 0,
        repeats: float = 3.0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """`batch`: samples of a step, of all ranks. `seed`: the published code has none. Raises InvalidInput."""
        if samples < 1 or batch < world:
            raise InvalidInput(f"{batch} samples a step of {samples} are too few for {world} ranks")
        self.position = 0
        self._samples, self._batch, self._world = samples, batch // world, world
        random = np.random.default_rng([seed, rank])
        self._sampler = PublishedSampler(samples, self._batch, random, rank, world, repeats)
        self._cache = PublishedCache(samples, capacity)
        self._order: list[int] = []
        self._accuracies: list[float] = []
        self._losses: list[float] = []
        self._hits = 0
        self._is_waiting = False  # for the losses of the step consumed last

    @property
    def epoch(self) -> int:
        return self._sampler.epoch

    def __len__(self) -> int:
        return ceil(ceil(self._samples / self._world) / self._batch)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._sampler.end_epoch(fmean(self._losses) if self._losses else 1.0)
            self._sampler.epoch = epoch
            self._losses, self._hits, self.position, self._is_waiting = [], 0, 0, False

    def steps(self) -> Iterator[tuple[int, list[int]]]:
        self._order = self._sampler.draw(self._cache.cached)
        for first in range(0, len(self._order), self._batch):
            samples = self._order[first : first + self._batch]
            yield first + len(samples), samples

    def consume(self) -> list[int]:
        samples = self._order[self.position : self.position + self._batch]
        if not samples:
            raise InvalidInput("more batches were consumed than were taken: count each batch once")
        before = self._cache.cached.copy()
        self._hits += sum(map(self._cache.access, samples))
        self.position += len(samples)
        self._is_waiting = True
        released = np.flatnonzero(before & ~self._cache.cached).tolist()
        return released + [sample for sample in samples if not self._cache.cached[sample]]

    def record(self, losses: Any, samples: Any = None) -> None:
        """`samples` is ignored: the published code attributes losses by place."""
        if not self._is_waiting:
            raise InvalidInput("there is no batch that these losses are of: record them once for each batch")
        count = (self.position - 1) % self._batch + 1
        checked = checked_losses(losses, count)
        self._is_waiting = False
        self._losses += checked.tolist()
        self._cache.end_batch(*self._sampler.record(checked))

    def statistics(self) -> dict[str, float]:
        return {"reads": self.position, "hits": self._hits, "different": len(set(self._order))}

    def exchange(self) -> None:
        """Ranks exchange nothing."""

    def note_accuracy(self, accuracy: float) -> None:
        """The first difference counts as 0, as in the published code."""
        self._accuracies = [*self._accuracies[-3:], accuracy]
        changes = [0.0, *np.diff(self._accuracies).tolist()][-3:]
        self._sampler.change = fmean(changes) if len(self._accuracies) > 3 else changes[-1]
