"""How strongly an epoch prefers important samples, from the course of loss and accuracy (SHADE, PADS). No I/O.

Cached samples are repeated while the validation accuracy improves. When it stagnates they are not, so that the network
does not learn a small subset. Smoothing makes probabilities more alike; it follows the loss.
"""

from dataclasses import dataclass, field
from math import exp, isfinite

from dieselfs.errors import InvalidInput
from dieselfs.importance.scores import SCORE_UNITS

SMOOTHING_SHARE = 0.01
"""Share of the mean loss of the first epoch that is added to each score."""
SMOOTHING_MAX = 100.0
CHANGES = 3
"""Differences of accuracy that are averaged."""


@dataclass(slots=True)
class Schedule:
    """`repeats`: how often a cached sample is served for each time that it was drawn, while accuracy improves.

    `accuracies`: the last CHANGES + 1.
    """

    repeats: float
    smoothing: float = 0.0
    loss: float | None = None
    accuracies: list[float] = field(default_factory=list)

    def repeats_now(self) -> float:
        """Without accuracies, samples are always repeated."""
        if len(self.accuracies) < 2:
            return self.repeats
        mean_change = (self.accuracies[-1] - self.accuracies[0]) / (len(self.accuracies) - 1)
        return self.repeats if mean_change > 0 else 1.0

    @property
    def smoothing_units(self) -> int:
        """`smoothing` in the unit of scores."""
        return round(self.smoothing * SCORE_UNITS)

    def end_epoch(self, mean_loss: float) -> None:
        if self.loss is None:
            self.smoothing = SMOOTHING_SHARE * mean_loss
        elif self.loss > 0:
            change = max(min((mean_loss - self.loss) / self.loss, 1.0), -1.0)
            self.smoothing *= exp(change)
        self.smoothing = max(min(self.smoothing, SMOOTHING_MAX), 0.0)
        self.loss = mean_loss

    def note_accuracy(self, accuracy: float) -> None:
        """Take the accuracy on validation data, once an epoch, in any unit. Raises InvalidInput unless it is finite."""
        if not isfinite(accuracy):
            raise InvalidInput(f"the accuracy is {accuracy}: give a finite number")
        self.accuracies = [*self.accuracies[-CHANGES:], float(accuracy)]
