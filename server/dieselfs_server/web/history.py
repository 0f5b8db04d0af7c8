"""The last figures of a server, for charts. No I/O.

A ring has every sample of the last half hour, another the mean of each minute of the last day. Both are in memory: a
restart begins with empty charts.
"""

from collections import deque
from collections.abc import Mapping, Sequence

SAMPLE_S = 2.0
SAMPLES_MAX = 900
MINUTES_MAX = 1440

_MINUTE_S = 60

Sample = Mapping[str, float | None]
"""By the name of a series; None if it is not known."""


class History:
    """Samples of `series`, in the order of time."""

    def __init__(self, series: Sequence[str]) -> None:
        self.series = tuple(series)
        self._samples: deque[tuple[float, Sample]] = deque(maxlen=SAMPLES_MAX)
        self._minutes: deque[tuple[float, Sample]] = deque(maxlen=MINUTES_MAX)
        self._minute: list[Sample] = []
        self._minute_began_s = 0

    def add(self, time_s: float, sample: Sample) -> None:
        """`time_s`: since 1970."""
        began_s = int(time_s) // _MINUTE_S * _MINUTE_S
        if began_s != self._minute_began_s and self._minute:
            self._minutes.append((self._minute_began_s, self._mean()))
            self._minute = []
        self._minute_began_s = began_s
        self._minute.append(sample)
        self._samples.append((time_s, sample))

    def columns(self, span_s: float) -> dict[str, list[float | None]]:
        """The samples of the last `span_s`: `time` and each series. Of a longer span than half an hour, minutes."""
        is_fine = span_s <= SAMPLES_MAX * SAMPLE_S
        found = [*(self._samples if is_fine else self._minutes)]
        if not is_fine and self._minute:
            found.append((self._minute_began_s, self._mean()))
        since_s = (found[-1][0] if found else 0) - span_s
        shown = [(time_s, sample) for time_s, sample in found if time_s > since_s]
        columns: dict[str, list[float | None]] = {"time": [round(time_s, 3) for time_s, _ in shown]}
        for name in self.series:
            columns[name] = [_rounded(sample.get(name)) for _, sample in shown]
        return columns

    def _mean(self) -> Sample:
        means: dict[str, float | None] = {}
        for name in self.series:
            known = [value for sample in self._minute if (value := sample.get(name)) is not None]
            means[name] = sum(known) / len(known) if known else None
        return means


def _rounded(value: float | None) -> float | None:
    """With six digits, which is what a chart shows."""
    return None if value is None else float(f"{value:.6g}")
