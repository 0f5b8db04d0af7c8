"""Samples the metrics of this server again and again, for the charts and for everybody who watches.

Of the figures, one series has every sample of the last half hour, another the mean of each minute of the last day. Both
are in memory: a restart begins with empty charts.
"""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import trio

from dieselfs.telemetry import catalogue
from dieselfs.telemetry.activity import Activity, ServerActivity, activity
from dieselfs.telemetry.registry import Family, Report
from dieselfs.telemetry.series import Series
from dieselfs.telemetry.socket import published, sockets_folder

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


SERVER_SERIES = (
    *("calls", "failed", "sent_bytes", "received_bytes", "store_bytes"),
    *("answer_s", "answer_p99_s", "store_s", "busy", "connections", "cpu", "shared_share"),
)
LOCAL_SERIES = ("mount_bytes", "mount_reads", "mount_waiting", "mount_hit_share")
SERIES = SERVER_SERIES + LOCAL_SERIES


def server_sample(before: Report | None, after: Report, seconds: float) -> Sample:
    """The rates and latencies of a server over `seconds`; `shared_share`: of its range requests, those that the read of
    another served.
    """
    now = activity(0, before, after, seconds)
    assert isinstance(now, ServerActivity)
    sample: dict[str, float | None] = {
        name: getattr(now, name) for name in SERVER_SERIES if hasattr(now, name)
    }
    sample["answer_p99_s"] = quantile(before, after, catalogue.RPC_ANSWERED_S, 0.99)
    asked, shared = (
        after.total(family) - (before.total(family) if before else 0)
        for family in (catalogue.READING_REQUESTS, catalogue.READING_SHARED_REQUESTS)
    )
    sample["shared_share"] = shared / asked if asked > 0 else None
    return sample


def quantile(before: Report | None, after: Report, family: Family, share: float) -> float | None:
    """The value of a histogram below which `share` of the new values are, over all labels; None without any. Between
    two bounds it is in proportion, as Prometheus has it.
    """
    new: dict[float, float] = defaultdict(float)
    for report, sign in ((after, 1), (before, -1)):
        for _, value in report.values(family) if report else ():
            for bound, below in (*value["le"].items(), ("inf", value["count"])):
                new[float(bound)] += sign * below
    count = new[float("inf")]
    if count <= 0:
        return None
    lower, below = 0.0, 0.0
    for bound in sorted(bound for bound in new if bound != float("inf")):
        if new[bound] >= share * count:
            return lower + (bound - lower) * (share * count - below) / (new[bound] - below)
        lower, below = bound, new[bound]
    return lower


def local_sample(daemons: Iterable[Activity]) -> Sample:
    """The mounts and caches of this machine together."""
    seen = [*daemons]
    shares = [each.hit_share for each in seen if each.hit_share is not None]
    return {
        "mount_bytes": sum(each.fetched_bytes for each in seen) if seen else None,
        "mount_reads": sum(each.reads for each in seen) if seen else None,
        "mount_waiting": sum(each.waiting for each in seen) if seen else None,
        "mount_hit_share": sum(shares) / len(shares) if shares else None,
    }


def local_view(daemon: Activity, infos: Report) -> dict[str, object]:
    """A mount or cache of this machine, as the page shows it."""
    suspected = infos.info(catalogue.JOB_SUSPECTED) or ()
    return {
        "process": daemon.process,
        "about": dict(daemon.about),
        "fetched_bytes": daemon.fetched_bytes,
        "reads": daemon.reads,
        "waiting": daemon.waiting,
        "failed": daemon.failed,
        "hit_share": daemon.hit_share,
        "memory_used_bytes": daemon.memory_used_bytes,
        "memory_granted_bytes": daemon.memory_granted_bytes,
        "cpu": daemon.cpu,
        "plans": [
            {
                "epoch": plan.epoch,
                "position": plan.position,
                "positions": plan.positions,
                "left_s": plan.left_s,
            }
            for plan in daemon.plans
        ],
        "suspected": [str(node) for node in suspected],
    }


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
