"""What an epoch was like, from the histories of the daemons that read it: one mount, or the nodes of a job. No I/O."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.errors import NotFound
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.activity import DAEMON_SOURCES, FETCHED
from dieselfs.telemetry.registry import Family
from dieselfs.telemetry.series import Recorded
from dieselfs.telemetry.stalls import DAEMON_CAUSES

POINTS_MAX = 240
"""The most points of one curve."""
SOURCES = ("node", "peers", "disk", "server")
"""Where bytes came from: the cache of the node, other nodes, the disk of the node, servers."""

Series = npt.NDArray[np.float64]
"""A value for each interval: shape (n,)."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One reader of the epoch. `seconds`: from its first file to the last one that is known; `share`: of the plan."""

    node: str
    rank: int
    world: int
    worker: int
    position: int
    share: float
    seconds: float
    positions_per_s: float


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """One daemon in the epoch."""

    node: str
    files: int
    hit_share: float | None
    fetched_bytes: int
    pushed_bytes: int
    waited_s: float
    failed: int
    cpu_s: float
    memory_used_bytes: int
    memory_granted_bytes: int


@dataclass(frozen=True, slots=True)
class EpochReport:
    """`plan`: its seed, epoch, group and positions; None without one, and the report is of all that is known.

    `ends_s`: shape (n,), the end of each interval, from `began_s` on. Rates are for a second: `files` of plans that
    programs read, bytes fetched by source (`fetched`) and `pushed` into the page cache. `waiting`: reads that waited on
    the average. `spent`: seconds of all threads of the daemons, by cause. `hits`: the share of files that were in the
    page cache when they were read, NaN without any; `best_hit_share`: the share of the dataset that fits into memory.
    """

    plan: Mapping[str, Any] | None
    began_s: float
    seconds: float
    ends_s: Series
    files: Series
    fetched: Mapping[str, Series]
    pushed: Series
    waiting: Series
    spent: Mapping[str, Series]
    hits: Series
    memory_used_bytes: Series
    best_hit_share: float
    nodes: Sequence[NodeTotals]
    ranks: Sequence[RankProgress]

    def totals(self) -> dict[str, Any]:
        """Sums over the epoch, for JSON."""
        widths_s = np.diff(self.ends_s, prepend=0.0)
        files = sum(node.files for node in self.nodes)
        hits = sum(node.files * (node.hit_share or 0.0) for node in self.nodes)
        return {
            "files": files,
            "files_per_s": round(files / self.seconds, 3),
            "hit_share": round(hits / files, 4) if files else None,
            "best_hit_share": round(self.best_hit_share, 4),
            "fetched_bytes": {source: _sum(rates * widths_s) for source, rates in self.fetched.items()},
            "pushed_bytes": _sum(self.pushed * widths_s),
            "waited_s": round(sum(node.waited_s for node in self.nodes), 3),
            "spent_s": {
                cause: round(float((rates * widths_s).sum()), 3) for cause, rates in self.spent.items()
            },
            "failed": sum(node.failed for node in self.nodes),
        }

    def points(self) -> Iterator[dict[str, Any]]:
        """One for each interval, for JSON."""
        for index, end_s in enumerate(self.ends_s):
            hit_share = self.hits[index]
            yield {
                "end_s": round(float(end_s), 3),
                "files_per_s": round(float(self.files[index]), 3),
                "fetched_bytes_per_s": {
                    source: round(float(all_[index])) for source, all_ in self.fetched.items()
                },
                "pushed_bytes_per_s": round(float(self.pushed[index])),
                "waiting": round(float(self.waiting[index]), 4),
                "spent": {cause: round(float(all_[index]), 4) for cause, all_ in self.spent.items()},
                "hit_share": None if np.isnan(hit_share) else round(float(hit_share), 4),
                "memory_used_bytes": round(float(self.memory_used_bytes[index])),
            }


def _sum(values: Series) -> int:
    return round(float(values.sum()))


def epoch_report(nodes: Mapping[str, Recorded], epoch: int | None = None) -> EpochReport:
    """`nodes`: the history of each, at least one. `epoch`: its number; None for the latest, or if no plan is known for
    all that is known. Raises NotFound if no history has the epoch.
    """
    plans = {node: _plan(recorded.plans, epoch) for node, recorded in nodes.items()}
    known = [plan for plan in plans.values() if plan is not None]
    if epoch is not None and not known:
        numbers = sorted({plan["epoch"] for recorded in nodes.values() for plan in recorded.plans})
        listed = ", ".join(map(str, numbers)) or "none"
        raise NotFound(f"epoch {epoch} is not in the history of the last hour; known epochs: {listed}")
    latest = max(known, key=_moved_s, default=None)
    if latest is not None:  # of several seeds, or of nodes that are not that far
        plans = {
            node: next((each for each in recorded.plans if each["order"] == latest["order"]), None)
            for node, recorded in nodes.items()
        }
        known = [plan for plan in plans.values() if plan is not None and _is_read(plan)]
    began_s, ended_s = _window(nodes.values(), known)
    edges_s = _edges(nodes.values(), began_s, ended_s)
    parts = [_Part(recorded, edges_s) for recorded in nodes.values()]

    def rate(family: Family, part: str = "", **labels: str) -> Series:
        return sum((each.rate(family, part, **labels) for each in parts), np.zeros(len(edges_s) - 1))

    files = rate(catalogue.PAGE_CACHE_PLANNED_FILES)
    hits = rate(catalogue.PAGE_CACHE_HITS)
    return EpochReport(
        plan=latest and {key: latest[key] for key in ("order", "seed", "epoch", "group", "positions")},
        began_s=began_s,
        seconds=ended_s - began_s,
        ends_s=edges_s[1:] - began_s,
        files=files,
        fetched={
            source: sum((each.fetched(source) for each in parts), np.zeros(len(files))) for source in SOURCES
        },
        pushed=rate(catalogue.PREFETCH_PUSHED_BYTES),
        waiting=rate(catalogue.READS_WAITED_S, part="sum"),
        spent={cause: rate(catalogue.WORK_SPENT_S, cause=cause) for cause in DAEMON_CAUSES},
        hits=np.divide(hits, files, out=np.full(len(files), np.nan), where=files > 0),
        memory_used_bytes=sum(
            (each.at(catalogue.MEMORY_USED_BYTES)[1:] for each in parts), np.zeros(len(files))
        ),
        best_hit_share=max(
            (float(each.at(catalogue.HIT_RATE_BEST_POSSIBLE)[-1]) for each in parts), default=0.0
        ),
        nodes=[part.totals(node) for node, part in zip(nodes, parts, strict=True)],
        ranks=[each for node, plan in plans.items() if plan is not None for each in _ranks(node, plan)],
    )


class _Part:
    """The history of one daemon at some times, which are the edges of the intervals."""

    def __init__(self, recorded: Recorded, edges_s: Series) -> None:
        self._recorded, self._edges_s = recorded, edges_s

    def at(self, family: Family, part: str = "", **labels: str) -> Series:
        values = self._recorded.series(family.exported_name, part, **labels)
        return np.interp(self._edges_s, self._recorded.times_s, values)

    def rate(self, family: Family, part: str = "", **labels: str) -> Series:
        return np.maximum(np.diff(self.at(family, part, **labels)), 0.0) / np.diff(self._edges_s)

    def fetched(self, source: str) -> Series:
        """Bytes a second from a source. A mount without a job counts what it fetched, which is of servers or its disk;
        others count by source.
        """
        disk = self.rate(catalogue.DISK_HIT_BYTES)
        if source == "disk":
            return disk
        by_source = {name: self.rate(family) for name, family in DAEMON_SOURCES.items()}
        if source == "server":
            counted = sum(by_source.values(), np.zeros(len(disk)))
            if not counted.any():
                fetched = (self.rate(family) for family in (*FETCHED, catalogue.NODE_CACHE_FETCHED_BYTES))
                counted = sum(fetched, np.zeros(len(disk)))
                return np.maximum(counted - disk, 0.0)
            return np.maximum(by_source["server"] - disk, 0.0)
        return by_source[source]

    def _change(self, family: Family, part: str = "") -> float:
        values = self.at(family, part)
        return float(max(values[-1] - values[0], 0.0))

    def totals(self, node: str) -> NodeTotals:
        files = self._change(catalogue.PAGE_CACHE_PLANNED_FILES)
        hits = self._change(catalogue.PAGE_CACHE_HITS)
        widths_s = np.diff(self._edges_s)
        return NodeTotals(
            node,
            round(files),
            round(min(hits / files, 1.0), 4) if files else None,
            sum(_sum(self.fetched(source) * widths_s) for source in SOURCES),
            round(self._change(catalogue.PREFETCH_PUSHED_BYTES)),
            round(self._change(catalogue.READS_WAITED_S, "sum"), 3),
            round(self._change(catalogue.READS_FAILED)),
            round(self._change(catalogue.PROCESS_CPU_S), 3),
            round(float(self.at(catalogue.MEMORY_USED_BYTES).max())),
            round(float(self.at(catalogue.MEMORY_GRANTED_BYTES)[-1])),
        )


def _plan(plans: Sequence[Mapping[str, Any]], epoch: int | None) -> Mapping[str, Any] | None:
    """The plan of this epoch that was read last, or of any epoch. One that nobody reads yet does not count."""
    known = [plan for plan in plans if (epoch is None or plan["epoch"] == epoch) and _is_read(plan)]
    return max(known, key=_moved_s, default=None)


def _is_read(plan: Mapping[str, Any]) -> bool:
    return any(reader["position"] for reader in plan["readers"])


def _moved_s(plan: Mapping[str, Any]) -> float:
    return max(float(reader["moved_s"]) for reader in plan["readers"])


def _window(nodes: Iterable[Recorded], plans: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """From the first to the last sign of the readers, or all that is known; at least a millisecond."""
    if plans:
        readers = [reader for plan in plans for reader in plan["readers"] if reader["position"]]
        began_s = min(float(reader["began_s"]) for reader in readers)
        ended_s = max(map(_moved_s, plans))
    else:
        times_s = [recorded.times_s for recorded in nodes]
        began_s, ended_s = min(each[0] for each in times_s), max(each[-1] for each in times_s)
    return began_s, max(ended_s, began_s + 1e-3)


def _edges(nodes: Iterable[Recorded], began_s: float, ended_s: float) -> Series:
    """The bounds of the intervals: no more than the daemon with most samples has, and POINTS_MAX at most."""
    samples = max(
        np.count_nonzero((np.asarray(each.times_s) > began_s) & (np.asarray(each.times_s) <= ended_s))
        for each in nodes
    )
    return np.linspace(began_s, ended_s, min(max(int(samples), 1), POINTS_MAX) + 1)


def _ranks(node: str, plan: Mapping[str, Any]) -> Iterator[RankProgress]:
    for reader in sorted(plan["readers"], key=lambda each: (each["world"], each["rank"], each["worker"])):
        if reader["position"]:
            seconds = reader["moved_s"] - reader["began_s"]
            yield RankProgress(
                node,
                reader["rank"],
                reader["world"],
                reader["worker"],
                reader["position"],
                round(min(reader["position"] / max(plan["positions"], 1), 1.0), 4),
                round(seconds, 3),
                round(reader["position"] / seconds, 3) if seconds > 0 else 0.0,
            )
