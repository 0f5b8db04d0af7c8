"""The parts of a mount's node together: chunk cache, prefetcher, control tree, warming, and their statistics."""

import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import trio

from dieselfs import __version__
from dieselfs.errors import DieselfsError
from dieselfs.importance.score_lines import LossBatch
from dieselfs.names import printable
from dieselfs.prefetch.extent_table import Pages
from dieselfs.prefetch.window import PlanWindow
from dieselfs.process.system_limits import room_bytes
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import FUSE, ONESHOT
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import CountedSource, FetchMetrics, Source
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.stalls import DAEMON_CAUSES, METER
from dieselfs_client.cluster.job_warmth import warmth_fields
from dieselfs_client.daemon.daemon_metrics import declare_daemon, declare_servers
from dieselfs_client.memory.budget import Allotment, allot_for
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.memory.foreground import Foreground
from dieselfs_client.memory.room import granted, shrunk
from dieselfs_client.memory.warming import Pace, Warming
from dieselfs_client.mount.control.tree import ControlTree
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import FUSE_VIEW, Choice
from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.reading.error_log import ErrorLog
from dieselfs_client.mount.reading.read_path import ReadPath
from dieselfs_client.mount.views.image_core import ImageCore
from dieselfs_client.mount.views.image_pages import ImagePages
from dieselfs_client.mount.views.image_reads import ImageReads
from dieselfs_client.mount.views.metadata_push import MetadataPush
from dieselfs_client.prefetch.prefetcher import PLAN_END_SHARE, PLAN_QUIET_S, Prefetcher
from dieselfs_client.supervision.handover_state import HandoverEntries, HandoverState, PlanProgress
from dieselfs_client.supervision.kept_scores import KeptScores
from dieselfs_client.supervision.status import MemoryFile

if TYPE_CHECKING:  # imported in a job, or to follow, alone
    from dieselfs_client.cluster.role import JobRole
    from dieselfs_client.daemon.following import Follower

_LAYOUTS_MAX = 4
"""Layouts of the dataset and of folders, for plans; 4 bytes a file each."""
HANDOVER_INTERVAL_S = 1.0
"""Progress of plans since the last write is lost if the daemon dies."""

_log = logging.getLogger(__name__)


def allotment_of(
    snapshot: Snapshot, options: MountOptions, job_nodes: int = 0, image_bytes: int = 0
) -> Allotment:
    """How the memory of a mount is split (`allot_for`), within the limits of the user and the system.

    Raises InvalidInput.
    """
    limits = room_bytes()
    if less := shrunk(options.memory_bytes, *limits):
        _log.warning("%s", less)
    return allot_for(snapshot, granted(options.memory_bytes, *limits), job_nodes, image_bytes)


class Node:
    """Used from one trio thread, except `plan`. Its tasks run in `nursery` until that is cancelled."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: Callable[[], Source],
        options: MountOptions,
        allotment: Allotment,
        pages: Pages,
        nursery: trio.Nursery,
        handover_state: HandoverState | None = None,
        buffer_pool: BufferPool | None = None,
        job: "JobRole | None" = None,
        metrics: Registry | None = None,
        clock: Callable[[], float] = trio.current_time,
        foreground: Foreground | None = None,
        view: Choice = FUSE_VIEW,
        root_mode: int | None = None,
        scores_file: MemoryFile | None = None,
        is_staged: bool = False,
    ) -> None:
        """`source`: the current source of bytes; called for each request, in any thread. `is_staged`: nobody reads
        before `begin`.

        `root_mode`: see `MountCore`. `scores_file`: has the scores of the previous daemon, and gets those of this one.
        """
        foreground = foreground or Foreground()
        self.metrics = metrics = metrics or Registry()
        self.stats = metrics.as_dict
        counted = CountedSource(source, FetchMetrics(metrics))
        image = pages.image if isinstance(pages, ImagePages) else None
        # Programs may open such a file to write, as the kernel asks nobody: it must not reach the page cache.
        hides_write_modes = options.scores and view.view == FUSE
        self.core = (
            MountCore(snapshot, root_mode, hides_write_modes)
            if image is None
            else ImageCore(snapshot, image, root_mode)
        )
        is_private = options.allow_other and not options.allow_plans
        self.control = ControlTree(
            snapshot, self, ErrorLog(), on_new_file=self._write_state, is_private=is_private
        )
        self._snapshot = snapshot
        self._scores = KeptScores(snapshot, scores_file)
        self._view = view
        self._options = options
        self._job = job
        self._allotment = allotment
        self._clock = clock
        self._nursery = nursery
        self.follower: Follower | None = None
        self._layout = lru_cache(_LAYOUTS_MAX)(lambda folder: Layout.of(snapshot, folder))
        self._chunk_cache = ChunkCache(
            snapshot,
            counted,
            allotment.evictable,
            nursery,
            options.timeout_s,
            buffer_pool=buffer_pool,
            foreground=foreground,
            node_cache=lambda: None if job is None else job.node_cache,
        )
        self._prefetcher = Prefetcher(
            snapshot, self._chunk_cache, counted, pages, allotment, nursery, clock, foreground, metrics
        )
        self._dataset_bytes = self._prefetcher.table.total_page_bytes
        reads = ReadPath(
            self.core, self._chunk_cache, self._prefetcher, options.timeout_s, metrics, has_blocks=job is None
        )
        self.reads: ReadPath | ImageReads = reads
        self.metadata_push: MetadataPush | None = None
        if isinstance(pages, ImagePages) and isinstance(self.core, ImageCore):
            push = MetadataPush(self.core, pages, nursery, self._prefetcher.pushing, clock)
            self.reads = ImageReads(self.core, reads, self.control.errors, push.missed)
            self.metadata_push = push
        self._declare_metrics(metrics)
        self._handover_state = handover_state or HandoverState()
        entries = self._handover_state.read()
        self._unresumed = [*entries.readings]  # of the previous daemon
        self.control.inherit(entries.files)  # before the kernel requests them
        nursery.start_soon(self._keep_state, entries)
        chunks = range(snapshot.chunk_count)
        pace = Pace(rate_bytes=options.warm_rate_bytes)
        self._warming = Warming(
            self._prefetcher, lambda: chunks, snapshot.chunk_payload_length, foreground, pace
        )
        if job is None:  # in a job each node fetches the chunks that it owns
            nursery.start_soon(self._warming.run)
            if options.policy == ONESHOT and not is_staged:
                self._warming.start()

    # -- for the control tree: `control_tree.ControlContents` ------------------------------------------------

    def share(self, asked: ShareName) -> Share:
        return asked.share(self._plan)

    def _plan(self, spec: PlanSpec) -> Plan:
        return Plan(self._snapshot, spec, self._layout(spec.folder), self._scores)

    def declare(self, share: Share) -> None:
        self._prefetcher.declare(share)
        self._write_state()

    async def order_opened(self, name: bytes) -> None:
        if self.follower is not None:
            await self.follower.order_opened(name)

    async def ahead_of(self, share: Share) -> None:
        await self._prefetcher.ahead_of(share)

    async def warmth(self) -> dict[str, Any]:
        if self._job is None:
            await self._prefetcher.look_at_pinned()
            own = warmth_fields(self._prefetcher.budget.warmth(self._chunk_cache.damaged))
            return {"dataset_bytes": self._dataset_bytes, "node": own, "job": None}
        return await self._job.warmth()

    def score(self, batch: LossBatch) -> None:
        self._scores.files.take(batch)

    def warm(self) -> None:
        if self._job is None:
            self._warming.start()
        else:
            self._job.warm()

    def cursors(self) -> list[str]:
        """Cursor of the slowest reader of each plan; it may have read slightly more. A list has none."""
        windows = [window for window in self._prefetcher.windows if window.plan.has_cursors]
        return [str(window.plan.cursor(window.position)) for window in windows]

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
        since_s = self._clock() - PLAN_QUIET_S
        return [window for window in self._prefetcher.windows if window.quiet_since_s >= since_s]

    # -- handover to the next daemon -----------------------------------------------------------------------

    def _write_state(self) -> None:
        readings = [
            PlanProgress(str(ShareName.of(share)), position)
            for window in self._prefetcher.windows
            for share, position in window.positions()
        ]
        readings += self._unresumed
        pinned, files = self._prefetcher.budget.pinned(), self.control.files()
        self._handover_state.write(HandoverEntries(readings, pinned, files))

    async def _keep_state(self, entries: HandoverEntries) -> None:
        """Resume the plans of the previous daemon; then write the state every HANDOVER_INTERVAL_S."""
        self._prefetcher.restore(chunk for chunk in entries.pinned if chunk < self._snapshot.chunk_count)
        for reading in entries.readings:
            try:
                share = await trio.to_thread.run_sync(self.share, ShareName.parse(reading.name.encode()))
            except DieselfsError as error:
                _log.warning("cannot resume a plan of the previous daemon: %s", error)
            else:
                self._prefetcher.declare(share, reading.position)
            self._unresumed.remove(reading)
        while True:
            self._write_state()
            if self._scores.is_changed:
                await trio.to_thread.run_sync(self._scores.keep)
            await trio.sleep(HANDOVER_INTERVAL_S)

    def info(self) -> dict[str, Any]:
        header = self._snapshot.header
        return {
            "dataset": header.dataset,
            "dataset_id": header.dataset_id.hex(),
            "folder": printable(self._snapshot.folder),
            "generation": header.generation,
            "digest": header.digest.hex(),
            "files": header.files,
            "chunks": header.chunks,
            "snapshot": str(self._snapshot.source),
            "server": self._options.server,
            "home": self._options.home,
            "version": __version__,
            **self._view_fields(),
            "follow": self.follower.fields() if self.follower else None,
            "options": {name: value for name, value in asdict(self._options).items() if value is not None},
        }

    def watch_servers(self, client: ServerClient) -> None:
        """Show in errors and in the statistics how the servers answer."""
        self.control.errors.trouble = client.trouble
        declare_servers(self.metrics, client)

    def _declare_metrics(self, metrics: Registry) -> None:
        prefetcher, allotment = self._prefetcher, self._allotment
        for part, size_bytes in asdict(allotment).items():
            metrics.declare(catalogue.MEMORY_ALLOTTED_BYTES, part=part).value = size_bytes
        used: dict[str, Callable[[], int]] = {
            "evictable": lambda: self._chunk_cache.policy.evictable_bytes,
            "window": lambda: prefetcher.budget.window_bytes,
            "pinned": lambda: prefetcher.budget.pinned_bytes,
            "tripwires": lambda: prefetcher.tripwires.held_bytes,
        }
        declare_daemon(metrics, self._snapshot, allotment.total, used, self._clock)
        for cause in DAEMON_CAUSES:
            metrics.declare(catalogue.WORK_SPENT_S, partial(METER.spent_for, cause), cause=cause)
        best = round(min(allotment.pinned / max(self._dataset_bytes, 1), 1), 4)
        metrics.declare(catalogue.HIT_RATE_BEST_POSSIBLE).value = best
        metrics.gauge("hit_rate.actual", "Pinned share of the planned bytes.", self._actual_hit_rate)
        metrics.info(
            "view", "How the kernel shows the files, and why no better way is possible.", self._view_fields
        )
        scored = self._scores.files
        metrics.gauge("importance.batches", "Batches of losses that were written.", lambda: scored.batches)
        metrics.gauge("importance.scored_files", "Files that have a score.", lambda: scored.scored)
        metrics.info("importance_orders", "The orders that were drawn last, with checksums.", scored.orders)
        metrics.declare(catalogue.PLANS, self._plans)

    def _view_fields(self) -> dict[str, str]:
        return {"view": self._view.view, "view_reason": self._view.reason}

    def _actual_hit_rate(self) -> float | None:
        planned_bytes = self._prefetcher.planned.value
        return round(self._prefetcher.planned_hits.value / planned_bytes, 4) if planned_bytes else None

    def _group_bytes(self, window: PlanWindow) -> int:
        """The files of an average group that the readers here read."""
        chunks = max(self._snapshot.chunk_count, 1)
        group_chunks = min(window.plan.spec.group_chunks or chunks, chunks)
        ranks = {(share.rank, share.world) for share, _ in window.positions()}
        return round(
            self._dataset_bytes * group_chunks / chunks * min(sum(1 / world for _, world in ranks), 1)
        )

    def _plans(self) -> list[dict[str, Any]]:
        return [
            {
                "order": str(ShareName.of(Share(window.plan, ReaderSpec()))),
                "policy": window.plan.spec.policy,
                "seed": window.plan.spec.seed,
                "epoch": window.plan.spec.epoch,
                "group": window.plan.spec.group_chunks,
                "group_bytes": self._group_bytes(window),
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
            for window in self._prefetcher.windows
        ]
