"""What this node tells the servers of its job now and then, from the metrics of its master."""

import os
from collections.abc import Callable

from dieselfs.cluster.node_progress import NodeProgress
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.activity import Activity, activity
from dieselfs.telemetry.registry import Registry, Report

REPORT_S = 10.0
"""At most so often."""
RENEWALS_PER_REPORT = 5
"""And with one renewal of this number, so that a large job writes few."""


class ProgressReport:
    """For one thread at a time. `clock`: seconds that do not fall."""

    def __init__(self, metrics: Registry, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._before: tuple[float, Report] | None = None
        self._renewals = 0

    def due(self) -> bytes:
        """What happened since the last report; empty while none is due."""
        self._renewals += 1
        now_s = self._clock()
        if self._before is None:
            self._before = now_s, self._metrics.report({"component": "mount"})
            return b""
        before_s, before = self._before
        if now_s - before_s < REPORT_S or self._renewals < RENEWALS_PER_REPORT:
            return b""
        after, self._renewals = self._metrics.report({"component": "mount"}), 0
        self._before = now_s, after
        seen = activity(os.getpid(), before, after, now_s - before_s)
        return (
            NodeProgress.seen(seen, after.total(catalogue.UPTIME_S)).encode()
            if isinstance(seen, Activity)
            else b""
        )
