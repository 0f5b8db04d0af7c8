"""The time of a training whose samples come from a cache or from a store: arithmetic over its misses. No I/O.

The last epoch was loaded for real. In the others a miss takes as long as there in the mean. Batches are loaded while
the training computes, so a step takes as long as the slower of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

COMPUTING_MS = 5.0
"""The training of a batch: less than loading one without a cache."""


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """`misses`: by epoch, of each batch; `samples`: in an epoch; `loads_ms`: of each batch of the last epoch."""

    misses: Sequence[Sequence[int]]
    samples: int
    loads_ms: Sequence[float]

    def epochs_s(self) -> list[float]:
        """The duration of each epoch."""
        miss_ms = sum(self.loads_ms) / max(sum(self.misses[-1]), 1)
        loads = [[each * miss_ms for each in epoch] for epoch in self.misses[:-1]]
        return [sum(max(each, COMPUTING_MS) for each in epoch) / 1e3 for epoch in (*loads, self.loads_ms)]

    def throughput(self) -> float:
        """Samples a second in the last epoch."""
        return self.samples / self.epochs_s()[-1]

    def load_ms(self) -> tuple[float, float]:
        """The mean time to load a batch of the last epoch, and its standard deviation."""
        return fmean(self.loads_ms), pstdev(self.loads_ms)

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
