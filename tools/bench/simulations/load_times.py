"""The time of a training whose samples come from a cache or from a slow store: arithmetic over its misses. No I/O.

A miss takes MISS_MS, those of a batch follow each other, and hits take no time. Batches are loaded while the training
computes, so a step takes as long as the slower of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

MISS_MS = 0.25
"""4,000 files a second: a few loaders at a store over a network."""
COMPUTING_MS = 5.0
"""The training of a batch: less than loading one without a cache."""


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """`misses`: by epoch, of each batch; `samples`: in an epoch."""

    misses: Sequence[Sequence[int]]
    samples: int

    @classmethod
    def of_hits(cls, hits: Sequence[Sequence[bool]], batch: int) -> "LoadTimes":
        """`hits`: by epoch, of each sample. Epochs have the same number of samples."""
        misses = [
            [epoch[first : first + batch].count(False) for first in range(0, len(epoch), batch)]
            for epoch in hits
        ]
        return cls(misses, len(hits[0]))

    def epochs_s(self) -> list[float]:
        """The duration of each epoch."""
        return [sum(max(each * MISS_MS, COMPUTING_MS) for each in epoch) / 1e3 for epoch in self.misses]

    def throughput(self, first: int) -> float:
        """Samples a second, from epoch `first` on."""
        durations_s = self.epochs_s()[first:]
        return self.samples * len(durations_s) / sum(durations_s)

    def load_ms(self, first: int) -> tuple[float, float]:
        """The mean time to load a batch, and its standard deviation within an epoch, from epoch `first` on."""
        loads = [[each * MISS_MS for each in epoch] for epoch in self.misses[first:]]
        return fmean(map(fmean, loads)), fmean(map(pstdev, loads))

    def hit_ratio(self, first: int) -> float:
        """The share of hits, from epoch `first` on."""
        return 1 - fmean(sum(epoch) / self.samples for epoch in self.misses[first:])

    def time_to(self, accuracies: Sequence[float], accuracy: float) -> float | None:
        """Seconds until the end of the first epoch with at least this accuracy; None if there is none."""
        spent_s = 0.0
        for reached, duration_s in zip(accuracies, self.epochs_s(), strict=True):
            spent_s += duration_s
            if reached >= accuracy:
                return spent_s
        return None
