"""Scores of samples: the rank of a sample's loss in its batch (SHADE, equation 6). No I/O.

A score is `log(rank + RANK_BIAS)`, where the rank is the number of samples of the batch with a smaller loss. So scores
of different batches and epochs have the same range. They are whole numbers, in units of 1 / SCORE_UNITS: orders that
are drawn by them are the same on every machine.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput

Scores = npt.NDArray[np.uint32]
"""Shape (n,): scores in units of 1 / SCORE_UNITS; 0 is the score of a sample that was never trained on."""
Losses = npt.NDArray[np.float64]
"""Shape (n,): the loss of each sample of a batch, finite."""

RANK_BIAS = 10
"""b0 of equation 6: scores of a batch of 64 then lie between 2.3 and 4.3."""
SCORE_UNITS = 1 << 16
LOWEST_SCORE = round(float(np.log(RANK_BIAS)) * SCORE_UNITS)
_SHOWN_MAX = 5


def ranks(losses: Losses) -> Numbers:
    """For each loss, how many of the batch are smaller. Equal losses have equal ranks."""
    return np.searchsorted(np.sort(losses), losses, side="left").astype(np.int64)


def scores_of(losses: Losses) -> Scores:
    """The score of each sample of a batch."""
    scores: Scores = np.rint(np.log(ranks(losses) + RANK_BIAS) * SCORE_UNITS).astype(np.uint32)
    return scores


def checked_losses(losses: Any, samples: int) -> Losses:
    """The losses of a batch of `samples` samples. Raises InvalidInput for another shape, NaN and infinity."""
    try:
        array = np.asarray(losses, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"losses must be numbers, one for each sample: {error}") from None
    if array.shape != (samples,):
        raise InvalidInput(
            f"the losses have the shape {array.shape}, the batch has {samples} samples: give one loss for each, "
            "as of a loss function with reduction='none'"
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        shown = ", ".join(f"number {place} is {array[place]}" for place in bad[:_SHOWN_MAX].tolist())
        more = f" and {len(bad) - _SHOWN_MAX} more" if len(bad) > _SHOWN_MAX else ""
        raise InvalidInput(
            f"losses must be finite, {shown}{more}: lower the learning rate, or leave out the step"
        )
    return array
