"""How far a rate falls after the loss of a node, and when it recovers: arithmetic over readers' records. No I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.figures import RunFailed
from lab.reader import BIN_S, Moment

BEFORE_S, AFTER_S = 1.5, 6.0
"""The window around the loss."""
BACK_SHARE = 0.9
SMOOTHED_BINS = 10
"""Rates are means over a second: a tenth has too few files."""

Rates = npt.NDArray[np.float64]
"""Files a second in each tenth of a second, from BEFORE_S before the loss to AFTER_S after it."""


@dataclass(frozen=True, slots=True)
class Dip:
    """Relative to the mean rate before the loss: `lowest`: the minimum after it; `after`: the mean after it; `back_s`:
    from the loss to the last rate below BACK_SHARE, or a tenth.
    """

    lowest: float
    after: float
    back_s: float


def rates_around(moments: Iterable[Moment], lost_s: float) -> Rates:
    """The sum over all readers. `lost_s`: time of the loss, by the clock of the moments."""
    edges = lost_s + np.linspace(-BEFORE_S, AFTER_S, round((BEFORE_S + AFTER_S) / BIN_S) + 1)
    rates = np.zeros(len(edges) - 1)
    for moment in moments:
        # Reads count in the last tenth of a moment: one long read may precede them.
        began_s = max(moment.began_s, moment.ended_s - BIN_S)
        inside_s = np.clip(edges, began_s, moment.ended_s)
        rates += np.diff(inside_s) / (moment.ended_s - began_s) * moment.reads
    return rates / BIN_S


def dip(rates: Rates) -> Dip:
    """Raises RunFailed if nothing was read before the loss."""
    lost = round(BEFORE_S / BIN_S)
    before = float(rates[:lost].mean())
    if not before:
        raise RunFailed("nothing was read before the loss")
    after = smoothed(rates)[lost:] / before
    low = np.flatnonzero(after < BACK_SHARE)
    back_s = float(low[-1] + 1) * BIN_S if len(low) else BIN_S
    return Dip(float(after.min()), float(rates[lost:].mean()) / before, back_s)


def smoothed(rates: Rates) -> Rates:
    """Each tenth as the mean of the second around it, shorter at the ends."""
    kernel = np.ones(SMOOTHED_BINS)
    return np.convolve(rates, kernel, "same") / np.convolve(np.ones_like(rates), kernel, "same")


def shares(rates: Sequence[float]) -> Rates:
    """Rates divided by the mean before the loss."""
    given = np.array(rates)
    before: float = given[: round(BEFORE_S / BIN_S)].mean()
    return given / before
