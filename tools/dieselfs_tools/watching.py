"""Watches the daemons of this node: reads their metrics again and again. This module reads sockets, and waits."""

import time
from collections.abc import Callable, Iterator

from dieselfs.activity import Activity, ServerActivity, activity
from dieselfs.metrics import Report
from dieselfs.process.metrics_socket import published

Seen = list[Activity | ServerActivity]


def watched(
    interval_s: float,
    read: Callable[[], Iterator[tuple[int, Report]]] = published,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Seen]:
    """What the daemons do: first since their start, then in each interval."""
    before: dict[int, tuple[float, Report]] = {}
    while True:
        seen: Seen = []
        now: dict[int, tuple[float, Report]] = {}
        for process, report in read():
            now[process] = (clock(), report)
            since_s, earlier = before.get(process, (0.0, None))
            seen.append(activity(process, earlier, report, now[process][0] - since_s))
        before = now
        yield seen
        wait(interval_s)
