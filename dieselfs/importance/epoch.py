"""The order of one epoch under importance sampling (SHADE's PADS). No I/O.

The first epoch has each sample once. In later ones each place is drawn, with replacement, in proportion to the scores.
Where repetition is wanted, samples of the cache are repeated and take places of samples outside of it, evenly over the
epoch. All of it is 64-bit integer arithmetic on (scores, cache, seed, epoch), so every rank gets the same order.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Keys, Numbers
from dieselfs.importance.scores import LOWEST_SCORE, Scores
from dieselfs.shuffle.order import mix, stream

HITS_SHARE_MAX = 0.75
"""The share of an epoch that samples of the cache take at most by repetition. The rest brings new samples, so the
cache cannot freeze.
"""

# So that keys are independent of each other, and of those of `shuffle.order`.
_DRAWS, _PLACES = 3, 4


@dataclass(frozen=True, slots=True)
class Epoch:
    """`samples`: shape (n,), the sample at each position. `shares`: shape (n of samples,), by sample, how often it is
    expected in the epoch, relative to once.
    """

    samples: Numbers
    shares: npt.NDArray[np.float64]

    def loss_weights(self, samples: Numbers) -> npt.NDArray[np.float64]:
        """Factors for the losses of samples, under which the expected gradient is that of uniform sampling: the same
        shape. Their mean over an epoch is about 1.
        """
        weights: npt.NDArray[np.float64] = 1.0 / self.shares[samples]
        return weights


def first_epoch(samples: int, seed: int, epoch: int) -> Epoch:
    """Each sample once, in random order."""
    keys = _keys(samples, seed, epoch, _PLACES)
    return Epoch(np.argsort(keys).astype(np.int64), np.ones(samples))


def later_epoch(
    scores: Scores, cached: npt.NDArray[np.bool_], seed: int, epoch: int, smoothing: int, repeats: float
) -> Epoch:
    """As many places as samples. `scores`, `cached`: shape (n,), by sample. `smoothing`: added to each score.

    `repeats`: how often a cached sample is served for each time that it was drawn, 1 for no repetition.
    """
    weights = np.maximum(scores, LOWEST_SCORE).astype(np.uint64) + np.uint64(smoothing)
    drawn = draw(weights, seed, epoch)
    count = len(drawn)
    is_hit = cached[drawn]
    hits, misses = drawn[is_hit], drawn[~is_hit]
    wanted = max(min(int(len(hits) * repeats), int(count * HITS_SHARE_MAX)), len(hits))
    served = np.concatenate((np.resize(hits, wanted), misses[: count - wanted]))
    places = _keys(count, seed, epoch, _PLACES)
    # Copy k of K comes in the k-th part of the epoch, so that the copies of a sample are far from each other.
    copies = np.arange(wanted) // max(len(hits), 1)
    parts = np.uint64(int(copies[-1]) + 1 if wanted else 1)
    width = np.uint64((1 << 64) - 1) // parts
    places[:wanted] = places[:wanted] // parts + copies.astype(np.uint64) * width
    shares = weights / weights.sum() * count
    shares[cached] *= wanted / max(len(hits), 1)
    shares[~cached] *= (count - wanted) / max(len(misses), 1)
    # A share of 0 is one of samples that this epoch does not have.
    return Epoch(served[np.argsort(places, kind="stable")], np.where(shares > 0, shares, 1.0))


def draw(weights: Keys, seed: int, epoch: int) -> Numbers:
    """As many samples as there are, each drawn in proportion to the weights, with replacement. Their sum must be below
    2^48; then the error of a probability is below 2^-16 of it.
    """
    ends = np.cumsum(weights)
    points = _keys(len(weights), seed, epoch, _DRAWS) % ends[-1]
    drawn: Numbers = np.searchsorted(ends, points, side="right").astype(np.int64)
    return drawn


def _keys(count: int, seed: int, epoch: int, kind: int) -> Keys:
    return mix(stream(seed, epoch, kind) ^ mix(np.arange(count, dtype=np.uint64)))
