"""The last figures of a server, for charts. No I/O.

One series has every sample of the last half hour, another the mean of each minute of the last day. Both are in memory:
a restart begins with empty charts.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dieselfs.telemetry.series import Series

SAMPLE_S = 2.0
SAMPLES_MAX = 900
MINUTES_MAX = 1440

_MINUTE_S = 60

Sample = Mapping[str, float | None]
"""By the name of a figure; None if it is not known."""


class Charts:
    """Samples of `figures`, in the order of time. Used from one thread."""

    def __init__(self, figures: Sequence[str]) -> None:
        self._figures = tuple(figures)
        self._samples: Series[str] = Series(SAMPLES_MAX, len(self._figures))
        self._minutes: Series[str] = Series(MINUTES_MAX, len(self._figures))

    def add(self, time_s: float, sample: Sample) -> None:
        """`time_s`: since 1970."""
        self._samples.add(time_s, {name: sample.get(name) for name in self._figures})
        began_s = time_s // _MINUTE_S * _MINUTE_S
        times_s, rows = self._samples.samples()
        newest = rows[times_s >= began_s]
        known = ~np.isnan(newest)
        totals, counts = np.where(known, newest, 0).sum(0), known.sum(0)
        means = {
            name: totals[i] / counts[i] if counts[i] else None for name, i in self._samples.columns.items()
        }
        self._minutes.add(began_s, means, is_replacing=self._minutes.newest_s == began_s)

    def columns(self, span_s: float) -> dict[str, list[float | None]]:
        """The samples of the last `span_s`: `time` and each figure. A span longer than half an hour has minutes."""
        series = self._samples if span_s <= SAMPLES_MAX * SAMPLE_S else self._minutes
        times_s, rows = series.samples()
        is_shown = times_s > (series.newest_s or 0) - span_s
        columns: dict[str, list[float | None]] = {"time": times_s[is_shown].round(3).tolist()}
        for place, name in enumerate(self._figures):
            columns[name] = [_rounded(value) for value in rows[is_shown, place].tolist()]
        return columns


def _rounded(value: float) -> float | None:
    """With six digits, which is what a chart shows; None for NaN."""
    return None if np.isnan(value) else float(f"{value:.6g}")
