"""What one node holds of a dataset for its readers: memory, stock and plans put together, and what they tell.

This module reads files of /proc for `stats`.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import trio

from dieselfs.chunk_source import NodeSource
from dieselfs.errors import DieselfsError
from dieselfs.meta.snapshot import Snapshot
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.skips import Skips
from dieselfs_client.ahead.pieces import PieceTable
from dieselfs_client.ahead.reads import Reads
from dieselfs_client.ahead.residency import ChunkResidency
from dieselfs_client.ahead.stock import Pages, Stock
from dieselfs_client.arena import Arena
from dieselfs_client.counted_source import CountedSource
from dieselfs_client.foreground import Foreground
from dieselfs_client.job.warmth import JobState, warmth_fields
from dieselfs_client.logbook import Entries, Logbook, Reading
from dieselfs_client.memory import (
    Allotment,
    allot,
    granted,
    owned_chunks_most,
    room_bytes,
    shelf_bytes_for,
)
from dieselfs_client.mount.control_tree import ControlTree
from dieselfs_client.mount.core import MountCore
from dieselfs_client.mount.error_log import ErrorLog
from dieselfs_client.options import ONESHOT, MountOptions
from dieselfs_client.warming import Pace, Warming

_LAYOUTS_KEPT = 4
"""Of the dataset and of folders in it, for their plans; 4 bytes a file each."""
LOG_INTERVAL_S = 1.0
"""What a daemon that dies has seen since is not known to the next one."""

_log = logging.getLogger(__name__)


def allotment_of(snapshot: Snapshot, options: MountOptions, job_nodes: int = 0) -> Allotment:
    """How the memory of a mount is split, within what the user and the system allow. Raises InvalidInput.

    `job_nodes`: how many nodes pool their memory, 1 if nobody knows; 0: it is no job.
    """
    table = PieceTable(snapshot)
    lengths = snapshot.column("chunk_payload_lengths")
    owned_bytes = 0
    if job_nodes and len(lengths):
        share = owned_chunks_most(len(lengths), job_nodes) / len(lengths)
        owned_bytes = shelf_bytes_for(int(share * int(lengths.sum(dtype=np.int64))), job_nodes)
    return allot(
        granted(options.memory_bytes, *room_bytes()),
        len(snapshot.content),
        len(snapshot),
        table.total_page_bytes(),
        int(lengths.max()) if len(lengths) else 0,
        owned_bytes,
    )


class NodeJob(Protocol):
    """The job that a node belongs to."""

    def stats(self) -> dict[str, Any]:
        """For `.dieselfs/stats`."""
        ...

    async def warmth(self) -> JobState:
        """How warm its nodes are. Waits for their answers, but not for long."""
        ...

    def warm(self) -> None:
        """Have all of its nodes fetch what they own and can keep."""
        ...


class Node:
    """Used from one trio thread, but for `plan`. What it starts runs in `nursery`, until that is cancelled."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: NodeSource,
        options: MountOptions,
        allotment: Allotment,
        pages: Pages,
        nursery: trio.Nursery,
        logbook: Logbook | None = None,
        arena: Arena | None = None,
        job: NodeJob | None = None,
        clock: Callable[[], float] = trio.current_time,
        foreground: Foreground | None = None,
    ) -> None:
        foreground = foreground or Foreground()
        counted = CountedSource(source)
        self.core = MountCore(snapshot)
        self.control = ControlTree(snapshot, self, ErrorLog(), on_new_file=self._log)
        self._snapshot = snapshot
        self._options = options
        self._job = job
        self._allotment = allotment
        self._source = counted
        self._clock = clock
        self._started_s = clock()
        self._layout = lru_cache(_LAYOUTS_KEPT)(lambda folder: Layout.of(snapshot, folder))
        self._residency = ChunkResidency(
            snapshot,
            counted,
            allotment.transit,
            nursery,
            options.timeout_s,
            arena=arena,
            foreground=foreground,
        )
        self._stock = Stock(snapshot, self._residency, counted, pages, allotment, nursery, clock, foreground)
        self._dataset_bytes = self._stock.table.total_page_bytes()
        self.reads = Reads(self.core, self._residency, self._stock, options.timeout_s)
        self._logbook = logbook
        self._unresumed: list[Reading] = []  # of the daemon before
        if logbook is not None:
            entries = logbook.read()
            self._unresumed = [*entries.readings]
            self.control.inherit(entries.files)  # before the kernel asks for them
            nursery.start_soon(self._keep_logbook, entries)
        chunks = range(snapshot.chunk_count)
        pace = Pace(rate_bytes=options.warm_rate_bytes)
        self._warming = Warming(self._stock, lambda: chunks, snapshot.chunk_payload_length, foreground, pace)
        if job is None:  # else each node of it fetches what it owns
            nursery.start_soon(self._warming.run)
            if options.policy == ONESHOT:
                self._warming.start()

    # -- what `.dieselfs/` shows ---------------------------------------------------------------------------

    def plan(self, seed: int, epoch: int, group_chunks: int, skips: Skips, folder: bytes) -> Plan:
        """The plan of these numbers, and of a folder. May be called from any thread. Raises InvalidInput, NotFound."""
        return Plan(self._snapshot, seed, epoch, group_chunks, skips, self._layout(folder))

    def declare(self, share: Share) -> None:
        """A reader begins to read its share of a plan: fetch ahead of it."""
        self._stock.declare(share)
        self._log()

    async def ahead_of(self, share: Share) -> None:
        """Wait a little, until the first files of a share that was declared are in the page cache."""
        await self._stock.ahead_of(share)

    async def warmth(self) -> dict[str, Any]:
        """How much of what memory can keep is there: on this node, and in its whole job."""
        if self._job is None:
            own = warmth_fields(self._stock.warmth())
            return {"dataset_bytes": self._dataset_bytes, "node": own, "job": None}
        return (await self._job.warmth()).fields()

    def warm(self) -> None:
        """Fetch what memory can keep, in the background: here, or on all nodes of the job."""
        if self._job is None:
            self._warming.start()
        else:
            self._job.warm()

    @property
    def is_busy(self) -> bool:
        """Whether anything is being fetched, pushed or dropped."""
        return self._stock.is_busy

    def cursors(self) -> list[str]:
        """Where the slowest reader of each plan is, as far as is known: what was read may be a little more."""
        return [str(window.plan.cursor(window.position)) for window in self._stock.windows]

    # -- what outlives this process ------------------------------------------------------------------------

    def _log(self) -> None:
        if self._logbook is None:
            return
        readings = [
            Reading.of(share, position)
            for window in self._stock.windows
            for share, position in window.positions()
        ]
        readings += self._unresumed
        self._logbook.write(Entries(readings, self._stock.holdings.kept(), self.control.files()))

    async def _keep_logbook(self, entries: Entries) -> None:
        """Go on where the daemon before was; then write down how far this one is."""
        self._stock.restore(chunk for chunk in entries.kept if chunk < self._snapshot.chunk_count)
        for reading in entries.readings:
            try:
                layout = await trio.to_thread.run_sync(self._layout, os.fsencode(reading.folder))
                share, position = reading.resumed(self._snapshot, layout)
            except DieselfsError as error:
                _log.warning("a plan of the daemon before cannot be gone on with: %s", error)
            else:
                self._stock.declare(share, position)
            self._unresumed.remove(reading)
        while True:
            self._log()
            await trio.sleep(LOG_INTERVAL_S)

    def info(self) -> dict[str, Any]:
        header = self._snapshot.header
        return {
            "dataset": header.dataset,
            "generation": header.generation,
            "digest": header.digest.hex(),
            "files": header.files,
            "chunks": header.chunks,
            "snapshot": str(self._snapshot.source),
            "server": self._options.server,
            "home": self._options.home,
            "version": version("dieselfs"),
            "options": {name: value for name, value in asdict(self._options).items() if value is not None},
        }

    def stats(self) -> dict[str, Any]:
        stock, figures = self._stock, self._stock.figures
        dataset_bytes = max(self._dataset_bytes, 1)
        planned = figures.planned_bytes
        return {
            "uptime_s": round(self._clock() - self._started_s, 3),
            "memory": {
                "granted_bytes": self._allotment.total,
                "allotted": asdict(self._allotment),
                "used": {
                    "transit": self._residency.resident_bytes,
                    "window": stock.holdings.window_bytes,
                    "kept": stock.holdings.kept_bytes,
                    "tripwires": stock.tripwires.held_bytes,
                },
                "process_bytes": process_bytes(),
            },
            "hit_rate": {
                "best_possible": round(min(self._allotment.kept / dataset_bytes, 1), 4),
                "actual": round(figures.planned_hit_bytes / planned, 4) if planned else None,
            },
            "reads": asdict(self.reads.figures),
            "fetches": self._source.figures(),
            "plan_reads": asdict(stock.plan_reads.figures),
            "stock": asdict(figures),
            "job": self._job.stats() if self._job else None,
            "plans": [
                {
                    "seed": window.plan.seed,
                    "epoch": window.plan.epoch,
                    "group": window.plan.group_chunks,
                    "positions": len(window.plan),
                    "fetched_to": window.ahead,
                    "dropped_to": window.behind,
                    "files_per_s": window.rate(),
                    "readers": [
                        {"rank": share.rank, "world": share.world, "position": position}
                        for share, position in window.positions()
                    ],
                }
                for window in stock.windows
            ],
        }


def process_bytes() -> int:
    """What this process has in memory of its own, in bytes: without files that are mapped, and others could map too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
