"""How strongly an epoch prefers important samples, from the course of loss and accuracy (SHADE, PADS). No I/O.

Cached samples are repeated while the validation accuracy improves. They are not when it stagnates, nor after a steep
decline of the loss, so that the network does not learn a small subset (section 4.2.1). Smoothing makes probabilities
more alike; it follows the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite

from dieselfs.errors import InvalidInput
from dieselfs.importance.scores import SCORE_UNITS

DEFAULT_REPEATS = 3.0
SMOOTHING_SHARE = 0.01
"""Share of the mean loss of the first epoch that is added to each score."""
SMOOTHING_MAX = 100.0
CHANGES = 3
"""Differences of accuracy that are averaged."""
STEEP_DECLINE = 0.3
"""A mean loss that fell in an epoch by this share of the largest one declines steeply. The paper names no number."""


def may_repeat(accuracies: Sequence[float], loss_change: float) -> bool:
    """Whether cached samples are repeated. SHADE (FAST 2023), section 4.2.1: "on noticing a steep decline in the loss
    convergence curve or a stagnant accuracy curve, SHADE intentionally shuffles the important samples".

    `accuracies`: the last ones, oldest first; fewer than two have no curve. `loss_change`: of the mean loss, from the
    epoch before to the last, as a share of the largest mean loss; 0 if one of them is not known.
    """
    is_stagnant = len(accuracies) > 1 and accuracies[-1] <= accuracies[0]
    return not is_stagnant and loss_change > -STEEP_DECLINE


@dataclass(slots=True)
class Schedule:
    """`repeats`: how often a cached sample is served for each time that it was drawn, while `may_repeat`.

    `accuracies`: the last CHANGES + 1. `loss`: the mean of the last epoch; `loss_peak`: the largest of all epochs;
    `loss_change`: see `may_repeat`.
    """

    repeats: float
    smoothing: float = 0.0
    loss: float | None = None
    accuracies: list[float] = field(default_factory=list)
    loss_peak: float = 0.0
    loss_change: float = 0.0

    def repeats_now(self) -> float:
        return self.repeats if may_repeat(self.accuracies, self.loss_change) else 1.0

    @property
    def smoothing_units(self) -> int:
        """`smoothing` in the unit of scores."""
        return round(self.smoothing * SCORE_UNITS)

    def end_epoch(self, mean_loss: float) -> None:
        self.loss_peak, self.loss_change = max(self.loss_peak, mean_loss), 0.0
        if self.loss is None:
            self.smoothing = SMOOTHING_SHARE * mean_loss
        elif self.loss > 0:
            self.loss_change = (mean_loss - self.loss) / max(self.loss_peak, self.loss)
            self.smoothing *= exp(max(min((mean_loss - self.loss) / self.loss, 1.0), -1.0))
        self.smoothing = max(min(self.smoothing, SMOOTHING_MAX), 0.0)
        self.loss = mean_loss

    def note_accuracy(self, accuracy: float) -> None:
        """Take the accuracy on validation data, once an epoch, in any unit. Raises InvalidInput unless it is finite."""
        if not isfinite(accuracy):
            raise InvalidInput(f"the accuracy is {accuracy}: give a finite number")
        self.accuracies = [*self.accuracies[-CHANGES:], float(accuracy)]
