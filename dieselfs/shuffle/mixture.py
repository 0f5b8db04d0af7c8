"""Which of several sources comes at each position of a mixed epoch (docs/reference/order.md). No I/O.

Counts first: each source has a fixed number of positions in an epoch, in proportion to its weight. Then places:
position k of c of a source gets a number in the k-th of c equal parts of an interval, by seed and epoch, and the
positions of all sources are sorted by these numbers. So each stretch of an epoch has all sources in about their
proportions.
"""

from collections.abc import Sequence
from math import isfinite
from numbers import Real

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.limits import MIXED_SAMPLES_MAX, MIXED_SOURCES_MAX
from dieselfs.shuffle.order import mix, stream

_PLACES, _SEEDS = 3, 4  # kinds of keys, as `order.py` has 1 and 2


def counts_of(lengths: Sequence[int], weights: Sequence[float] | None, total: int | None = None) -> list[int]:
    """The positions of each source in an epoch of `total` (default: all samples), in proportion to `weights`, rounded
    so that they add up: by largest remainder, of equal ones the first. Without weights, each sample once.

    Raises InvalidInput, which names the weight.
    """
    if not lengths or len(lengths) > MIXED_SOURCES_MAX:
        raise InvalidInput(f"{len(lengths)} datasets to mix: give 1 to {MIXED_SOURCES_MAX}")
    for number, length in enumerate(lengths):
        if not length:
            raise InvalidInput(f"dataset {number} of the mixture has no samples: leave it out")
    if weights is None:
        if total is not None:
            raise InvalidInput(
                "without weights an epoch has each sample once: give weights, or no epoch_samples"
            )
        return [*lengths]
    total = sum(lengths) if total is None else total
    if not 1 <= total <= MIXED_SAMPLES_MAX:
        raise InvalidInput(f"epoch_samples is {total}: give a number from 1 to {MIXED_SAMPLES_MAX}")
    if len(weights) != len(lengths):
        raise InvalidInput(f"{len(weights)} weights for {len(lengths)} datasets: give one for each")
    for number, weight in enumerate(weights):
        if isinstance(weight, bool) or not isinstance(weight, Real) or not isfinite(weight) or weight <= 0:
            raise InvalidInput(
                f"weight {number} is {weight!r}: give a positive number, or leave the dataset out"
            )
    # Fractions of whole numbers, so that every machine rounds alike.
    parts = [float(weight).as_integer_ratio() for weight in weights]
    common = max(denominator for _, denominator in parts)  # powers of two
    shares = [numerator * (common // denominator) for numerator, denominator in parts]
    counts = [share * total // sum(shares) for share in shares]
    rests = [share * total % sum(shares) for share in shares]
    for number in sorted(range(len(rests)), key=lambda number: -rests[number])[: total - sum(counts)]:
        counts[number] += 1
    for number, count in enumerate(counts):
        if not count:
            raise InvalidInput(
                f"weight {number} is {weights[number]!r}, which gives no sample in an epoch of {total}: leave the "
                "dataset out, or make epoch_samples larger"
            )
    return counts


def interleave(counts: Sequence[int], seed: int, epoch: int) -> npt.NDArray[np.uint16]:
    """The source at each position of an epoch: shape (sum of counts,). About 0.2 s for a million."""
    places = []
    for source, count in enumerate(counts):
        number = np.arange(count, dtype=np.uint64)
        key = mix(mix(stream(seed, epoch, _PLACES) ^ np.uint64(source)) ^ number) >> np.uint64(32)
        places.append(((number << np.uint64(32)) | key) // np.uint64(count))
    sources = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
    return sources[np.argsort(np.concatenate(places), kind="stable")]


def numbers_of(sources: npt.NDArray[np.uint16], counts: Sequence[int]) -> Numbers:
    """How often the source of each position comes before it: shape (n,), as `sources`."""
    by_source = np.argsort(sources, kind="stable")
    numbers = np.empty(len(sources), np.int64)
    numbers[by_source] = np.concatenate([np.arange(count) for count in counts])
    return numbers


def seed_of(seed: int, source: int) -> int:
    """The seed of the order of a source, so that one dataset given twice is read in two orders."""
    return int(stream(seed, source, _SEEDS)[0])
