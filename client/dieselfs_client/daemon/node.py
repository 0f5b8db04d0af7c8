"""The parts of a mount's node together: chunk cache, prefetcher, control tree, warming, and the view's reads."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from dieselfs import __version__
from dieselfs.arrays import Numbers
from dieselfs.cluster.holdings import FAR, HERE
from dieselfs.errors import InvalidInput
from dieselfs.importance.score_lines import LossBatch
from dieselfs.limits import FETCHES_AT_ONCE_MAX
from dieselfs.names import printable
from dieselfs.prefetch.extent_table import Pages
from dieselfs.prefetch.window import PlanWindow
from dieselfs.process.system_limits import room_bytes
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import ONESHOT
from dieselfs.shuffle.groups import GROWN_CHUNKS
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.policies import OPPORTUNISTIC
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import CountedSource, FetchMetrics, Source
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.stalls import DAEMON_CAUSES, METER
from dieselfs_client.cluster.job_warmth import warmth_fields
from dieselfs_client.daemon.drawn_orders import DrawnOrders, KeptOrder
from dieselfs_client.daemon.progress_keeper import HANDOVER_STATE, Handover, ProgressKeeper
from dieselfs_client.daemon.service import declare_daemon, declare_servers
from dieselfs_client.memory.budget import Allotment, allot_for, allotting, window_advice
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.memory.fetch_workers import fetches_at_once
from dieselfs_client.memory.room import granted, shrunk
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.memory.warming import WARM_LOADS_AT_ONCE_MAX, Pace, Warming
from dieselfs_client.mount.control.tree import ControlTree
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.reading.error_log import ErrorLog
from dieselfs_client.mount.reading.read_path import ReadPath
from dieselfs_client.mount.views.view import View
from dieselfs_client.prefetch.prefetcher import PLAN_END_SHARE, PLAN_QUIET_S, Prefetcher
from dieselfs_client.supervision.status import MemoryFile

if TYPE_CHECKING:  # imported in a job, or to follow, alone
    from dieselfs_client.cluster.role import JobRole
    from dieselfs_client.daemon.following import Follower

_LAYOUTS_MAX = 4
"""Layouts of the dataset and of folders, for plans; 4 bytes a file each."""

_log = logging.getLogger(__name__)


def allotment_of(
    snapshot: Snapshot,
    options: MountOptions,
    job_nodes: int = 0,
    image_bytes: int = 0,
    fetches: int = FETCHES_AT_ONCE_MAX,
) -> Allotment:
    """How the memory of a mount is split (`allot_for`), within the limits of the user and the system.

    Raises InvalidInput.
    """
    limits = room_bytes()
    if less := shrunk(options.memory_bytes, *limits):
        _log.warning("%s", less)
    return allot_for(snapshot, granted(options.memory_bytes, *limits), job_nodes, image_bytes, fetches)


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """What the daemon has made for a mount. `is_staged`: nobody reads before `Node.begin`. `workers`: processes that
    fetch, and as many that push.
    """

    snapshot: Snapshot
    options: MountOptions
    allotment: Allotment
    view: View
    pages: Pages
    buffer_pool: BufferPool | None = None
    is_staged: bool = False
    workers: int = 1


class Node:
    """Used from one trio thread, except `share`. Its tasks run in `nursery` until that is cancelled."""

    def __init__(
        self,
        prepared: Prepared,
        source: Callable[[], Source],
        nursery: trio.Nursery,
        handover: Handover | None = None,
        job: "JobRole | None" = None,
        metrics: Registry | None = None,
        foreground: Foreground | None = None,
    ) -> None:
        """`source`: the current source of bytes; called for each request, in any thread. `handover`: what the previous
        daemon has left; gets the state of this one.
        """
        self.metrics = metrics = metrics or Registry()
        self.stats = metrics.as_dict
        self._prepared = prepared
        self._snapshot = snapshot = prepared.snapshot
        self._options = options = prepared.options
        self._job = job
        self._nursery = nursery
        self.follower: Follower | None = None
        self._layout = lru_cache(_LAYOUTS_MAX)(lambda folder: Layout.of(snapshot, folder))
        foreground, handover = foreground or Foreground(), handover or Handover(MemoryFile(HANDOVER_STATE))
        is_encrypted = snapshot.header.is_encrypted  # and so is what the node cache has
        counted = CountedSource(source, FetchMetrics(metrics))
        self._chunk_cache = ChunkCache(
            snapshot,
            counted,
            prepared.allotment.evictable,
            nursery,
            options.timeout_s,
            fetches_at_once=fetches_at_once(prepared.workers),
            buffer_pool=prepared.buffer_pool,
            foreground=foreground,
            node_cache=lambda: None if job is None or is_encrypted else job.node_cache,
        )
        self._prefetcher = Prefetcher(
            snapshot,
            self._chunk_cache,
            counted,
            prepared.pages,
            prepared.allotment,
            nursery,
            foreground=foreground,
            metrics=metrics,
            workers=prepared.workers,
        )
        self.used = self._prefetcher.used
        self.control = ControlTree(
            snapshot,
            self,
            ErrorLog(),
            on_new_file=self._write_progress,
            is_private=options.allow_other and not options.allow_plans,
        )
        self.core = prepared.view.core()
        path = ReadPath(
            self.core, self._chunk_cache, self._prefetcher, options.timeout_s, metrics, has_blocks=job is None
        )
        self.reads = prepared.view.reads(path, self.control.errors, nursery, self._prefetcher.pushing)
        # Adds the files of the previous daemon to the control tree before the kernel asks for them.
        keep = partial(ProgressKeeper, snapshot, handover, self._prefetcher, self.control)
        self._progress = keep(self.share, self._orders, None if job is None else job.scores)
        self._prefetcher.kept.scored = self._progress.scores.files
        if job is not None:
            self._prefetcher.kept.job, job.files.begin = job.files, self._prefetcher.begin_keeping
        nursery.start_soon(self._progress.run)
        self._declare_metrics()
        self.memory_advice = "" if job else self._advice()  # nodes of a job have shares of groups
        self._warming = Warming(
            self._prefetcher,
            lambda: range(snapshot.chunk_count),
            snapshot.chunk_payload_length,
            foreground,
            Pace(max(WARM_LOADS_AT_ONCE_MAX, prepared.workers), rate_bytes=options.warm_rate_bytes),
        )
        if job is None:  # in a job each node fetches the chunks that it owns
            nursery.start_soon(self._warming.run)
            if options.policy == ONESHOT and not prepared.is_staged:
                self._warming.start()

    def _advice(self) -> str:
        """What the memory of this mount is too little for (`window_advice`)."""
        prepared, dataset_bytes = self._prepared, self._prefetcher.table.total_page_bytes
        fetches = fetches_at_once(prepared.workers)
        allotted = allotting(self._snapshot, dataset_bytes, 0, prepared.view.metadata_bytes, fetches)
        return window_advice(prepared.allotment, dataset_bytes, self._snapshot.chunk_count, allotted)

    def _declare_metrics(self) -> None:
        """What belongs to no part of the node alone: memory, hit rate, view, scores, plans."""
        metrics, prefetcher, allotment = self.metrics, self._prefetcher, self._prepared.allotment
        for part, size_bytes in asdict(allotment).items():
            metrics.declare(catalogue.MEMORY_ALLOTTED_BYTES, part=part).value = size_bytes
        used: dict[str, Callable[[], int]] = {
            "evictable": lambda: self._chunk_cache.policy.evictable_bytes,
            "window": lambda: prefetcher.budget.window_bytes,
            "pinned": lambda: prefetcher.budget.pinned_bytes + prefetcher.kept.used_bytes,
            "tripwires": lambda: prefetcher.tripwires.held_bytes,
        }
        declare_daemon(metrics, self._snapshot, allotment.total, used, trio.current_time)
        for cause in DAEMON_CAUSES:
            metrics.declare(catalogue.WORK_SPENT_S, partial(METER.spent_for, cause), cause=cause)
        dataset_bytes = prefetcher.table.total_page_bytes
        best = round(min(allotment.pinned / max(dataset_bytes, 1), 1), 4)
        metrics.declare(catalogue.HIT_RATE_BEST_POSSIBLE).value = best
        metrics.gauge(
            "hit_rate.actual", "Pinned share of the planned bytes.", partial(_actual_hit_rate, prefetcher)
        )
        choice, scored = self._prepared.view.choice, self._progress.scores.files
        metrics.info(
            "view", "How the kernel shows the files, and why no better way is possible.", choice.fields
        )
        metrics.gauge("importance.batches", "Batches of losses that were written.", lambda: scored.batches)
        metrics.gauge("importance.scored_files", "Files that have a score.", lambda: scored.scored)
        metrics.declare(catalogue.IMPORTANCE_READS, lambda: scored.reads)
        metrics.declare(catalogue.IMPORTANCE_HITS, lambda: scored.hits)
        metrics.declare(catalogue.IMPORTANCE_FROM_PEERS, lambda: scored.from_peers)
        metrics.info("importance_orders", "The orders that were drawn last, with checksums.", scored.orders)
        metrics.declare(
            catalogue.PLANS, lambda: [_plan(window, dataset_bytes) for window in prefetcher.windows]
        )

    def watch_servers(self, client: ServerClient) -> None:
        """Show in errors and in the statistics how the servers answer."""
        self.control.errors.trouble = client.trouble
        declare_servers(self.metrics, client)

    # -- for the control tree: `control_tree.ControlContents` ------------------------------------------------

    def share(self, asked: ShareName) -> Share:
        if asked.plan.policy == OPPORTUNISTIC:
            return self._progress.orders.share(asked)
        return asked.share(self._plan)

    def log(self, asked: ShareName) -> str:
        if asked.plan.policy != OPPORTUNISTIC:
            raise InvalidInput(f"an order with policy={asked.plan.policy} has no log: leave out log=")
        return self._progress.orders.log(asked)

    def _orders(self, left: Sequence[KeptOrder]) -> DrawnOrders:
        node = None if self._job is None else self._job.node
        return DrawnOrders(self._snapshot, self._layout, self._distances, node, left)

    def _distances(self) -> Numbers:
        """Where the chunks are, for an opportunistic order. Waits for the other nodes of a job, WARMTH_TIMEOUT_S."""
        found = np.full(self._snapshot.chunk_count, FAR) if self._job is None else self._job.distances()
        found[self._prefetcher.budget.pinned()] = HERE
        return found

    def _plan(self, spec: PlanSpec) -> Plan:
        return Plan(self._snapshot, spec, self._layout(spec.folder), self._progress.scores)

    def declare(self, share: Share) -> None:
        self._prefetcher.declare(share)
        self._write_progress()

    def _write_progress(self) -> None:
        self._progress.write()

    async def order_opened(self, name: bytes) -> None:
        self._prefetcher.expect_plan()
        if self.follower is not None:
            await self.follower.order_opened(name)

    def is_starting(self) -> bool:
        return self._prefetcher.is_starting

    async def ahead_of(self, share: Share) -> None:
        await self._prefetcher.ahead_of(share)

    def read_ahead(self, numbers: list[int]) -> None:
        self._prefetcher.read_ahead(numbers)

    async def warmth(self) -> dict[str, Any]:
        if self._job is None:
            prefetcher = self._prefetcher
            await prefetcher.look_at_pinned()
            own = warmth_fields(prefetcher.budget.warmth(self._chunk_cache.damaged))
            return {"dataset_bytes": prefetcher.table.total_page_bytes, "node": own, "job": None}
        return await self._job.warmth()

    def score(self, batch: LossBatch) -> None:
        self._progress.scores.take(batch)

    def warm(self) -> None:
        if self._job is None:
            self._warming.start()
        else:
            self._job.warm()

    def cursors(self) -> list[str]:
        """Cursor of the slowest reader of each plan; it may have read slightly more. A list has none."""
        windows = [window for window in self._prefetcher.windows if window.plan.has_cursors]
        return [str(window.plan.cursor(window.position)) for window in windows]

    def info(self) -> dict[str, Any]:
        header, options, choice = self._snapshot.header, self._options, self._prepared.view.choice
        return {
            "dataset": header.dataset,
            "dataset_id": header.dataset_id.hex(),
            "tag": self._snapshot.tag,
            "folder": printable(self._snapshot.folder),
            "generation": header.generation,
            "digest": header.digest.hex(),
            "files": header.files,
            "chunks": header.chunks,
            "snapshot": str(self._snapshot.source),
            "server": options.server,
            "home": options.home,
            "version": __version__,
            **choice.fields(),
            "node": self._job.node if self._job else None,
            "memory_advice": self.memory_advice,
            "follow": self.follower.fields() if self.follower else None,
            "options": {name: value for name, value in asdict(options).items() if value is not None},
        }

    # -- following: `following.Moments` ------------------------------------------------------------------------

    def begin(self, follower: "Follower") -> None:
        """The mount is on its path, and moves to new generations."""
        self.follower = follower
        if self._options.policy == ONESHOT:
            self._warming.start()
        self._nursery.start_soon(follower.run)

    def is_idle(self) -> bool:
        return not self._read_windows() and not self.control.has_unread_orders()

    def is_between(self) -> bool:
        windows = self._read_windows()
        readers = [reader for window in windows for reader in window.positions()]
        is_at_end = all(
            window.is_finished or window.position >= PLAN_END_SHARE * len(window.plan) for window in windows
        )
        return is_at_end and len(readers) <= 1 and not self.control.has_unread_orders()

    def _read_windows(self) -> list[PlanWindow]:
        since_s = trio.current_time() - PLAN_QUIET_S
        return [window for window in self._prefetcher.windows if window.quiet_since_s >= since_s]


def _actual_hit_rate(prefetcher: Prefetcher) -> float | None:
    planned_bytes = prefetcher.planned.value
    return round(prefetcher.planned_hits.value / planned_bytes, 4) if planned_bytes else None


def _plan(window: PlanWindow, dataset_bytes: int) -> dict[str, Any]:
    spec = window.plan.spec
    return {
        "order": str(ShareName.of(Share(window.plan, ReaderSpec()))),
        "policy": spec.policy,
        "seed": spec.seed,
        "epoch": spec.epoch,
        "group": GROWN_CHUNKS if spec.group_chunks is None else spec.group_chunks,
        "group_bytes": _group_bytes(window, dataset_bytes),
        "positions": len(window.plan),
        "fetched_to": window.ahead,
        "dropped_to": window.behind,
        "files_per_s": window.rate(),
        "readers": [
            {
                "rank": share.rank,
                "world": share.world,
                "worker": share.reader.worker,
                "position": position,
            }
            for share, position in window.positions()
        ],
    }


def _group_bytes(window: PlanWindow, dataset_bytes: int) -> int:
    """The files of an average group that the readers here read."""
    ranks = {(share.rank, share.world) for share, _ in window.positions()}
    return round(dataset_bytes / window.plan.group_count * min(sum(1 / world for _, world in ranks), 1))
