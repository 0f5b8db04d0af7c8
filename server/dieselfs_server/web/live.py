"""Samples the metrics of this server again and again, for the charts and for everybody who watches."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import trio

from dieselfs.telemetry.activity import Activity, activity
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.socket import published, sockets_folder
from dieselfs_server.web.charts import SAMPLE_S, Charts, Sample
from dieselfs_server.web.figures import SERIES, local_sample, local_view, server_sample

log = logging.getLogger(__name__)


class Live:
    """For the trio thread. `watchers`: how many look; daemons of this machine are asked only then.

    `report`: the metrics of this server; `others`: of the daemons of its user on this machine, with process IDs.
    """

    def __init__(
        self,
        report: Callable[[], Report],
        others: Callable[[], Iterable[tuple[int, Report]]] = lambda: published(sockets_folder()),
    ) -> None:
        self.charts = Charts(SERIES)
        self.watchers = 0
        self.latest = b"{}"
        """The last sample, and the daemons of this machine, as JSON."""
        self._report = report
        self._others = others
        self._before: tuple[float, Report] | None = None
        self._daemons_before: dict[int, tuple[float, Report]] = {}
        self._changed = trio.Event()

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            try:
                await self._sample()
            except Exception:  # a bug leaves out one sample, and must not end the task
                log.exception("cannot sample the metrics for the page")
            self._changed.set()
            self._changed = trio.Event()
            await trio.sleep(SAMPLE_S)

    async def next(self) -> bytes:
        """Wait for the next sample."""
        await self._changed.wait()
        return self.latest

    async def _sample(self) -> None:
        now_s, report = trio.current_time(), self._report()
        before_s, before = self._before or (now_s, None)
        sample: Sample = server_sample(before, report, now_s - before_s)
        is_first, self._before = self._before is None, (now_s, report)
        local: list[dict[str, object]] = []
        if self.watchers:
            daemons = await trio.to_thread.run_sync(self._daemons, now_s)
            local = [local_view(daemon, its) for daemon, its in daemons]
            sample = {**sample, **local_sample(daemon for daemon, _ in daemons)}
        else:
            self._daemons_before = {}
        if is_first:  # of the time since the start, which is no rate of now
            return
        time_s = time.time()
        self.charts.add(time_s, sample)
        shown: dict[str, Any] = {"time": round(time_s, 3), "sample": dict(sample), "local": local}
        self.latest = json.dumps(shown).encode()

    def _daemons(self, now_s: float) -> list[tuple[Activity, Report]]:
        """What mounts and caches do since the last sample. Blocks."""
        found: list[tuple[Activity, Report]] = []
        now: dict[int, tuple[float, Report]] = {}
        for process, report in self._others():
            now[process] = now_s, report
            before_s, before = self._daemons_before.get(process, (0.0, None))
            seen = activity(process, before, report, now_s - before_s)
            if isinstance(seen, Activity):
                found.append((seen, report))
        self._daemons_before = now
        return found
