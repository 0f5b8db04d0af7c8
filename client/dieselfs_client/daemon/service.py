"""What all daemons share: the dataset and its pin, and the role in a job. This module calls the server."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from dieselfs.cluster.node_lock import NodeLock
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import ONESHOT, CacheOptions
from dieselfs.snapshot.pin import holder_name, keep_pinned, unpin
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Source
from dieselfs.sources.plain import decrypted, readable
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.series import History
from dieselfs.telemetry.socket import PublishedMetrics
from dieselfs_client.cluster.node_paths import path_of
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.memory.warming import WARM_LOADS_AT_ONCE_MAX, Pace
from dieselfs_client.supervision.supervisor_client import HandoverChunks

if TYPE_CHECKING:  # imported in a job alone: they take 2 MB
    from dieselfs_client.cluster.pool import PoolConfig
    from dieselfs_client.cluster.role import JobRole
    from dieselfs_client.memory.fetch_workers import FetchWorkers

FIRST_PIN_TIMEOUT_S = 5.0
"""A daemon is ready once the server has its pin, or after this time."""


@dataclass(eq=False)
class Service:
    """What daemons with and without a mount share: the role in the job, and the pin of the generation."""

    snapshot: Snapshot
    source: Source
    options: CacheOptions
    client: ServerClient | None

    def __post_init__(self) -> None:
        self.reader = self.source if isinstance(self.source, ServerSource) else None
        """The source without the job: the disk of the node, and servers. None without a server."""
        self.metrics = Registry() if self.reader is None else self.reader.metrics
        self.published_metrics = PublishedMetrics(self.metrics, {}, History(self.metrics))
        """The daemon sets its labels."""
        self.role: JobRole | None = None
        self.config: PoolConfig | None = None
        if self.options.job is not None and self.client is not None:
            from dieselfs_client.cluster.pool import pool_config

            self.config = pool_config(self.options, self.client, self.snapshot.dataset, os.environ)
        self.holder = holder_name(str(path_of(self.snapshot, self.config)), os.getpid())
        self._is_pinned = trio.Event()

    def labels(self) -> dict[str, str]:
        """Labels of its metrics: the dataset, and in a job the job and the node."""
        job = {"job": self.config.job.name, "node": self.config.job.node} if self.config else {}
        return {"dataset": self.snapshot.dataset, **job}

    def join(
        self,
        lock: NodeLock,
        memory_bytes: int,
        nursery: trio.Nursery,
        foreground: Foreground,
        handover_chunks: HandoverChunks | None = None,
        is_resumed: bool = False,
        fetch_workers: "FetchWorkers | None" = None,
    ) -> None:
        """Take part in the job, if there is one."""
        if self.config is None or self.client is None or self.reader is None:
            return
        from dieselfs_client.cluster.pool import PoolHost
        from dieselfs_client.cluster.role import JobRole

        config = replace(self.config, memory_bytes=memory_bytes)
        workers = 1 if fetch_workers is None else fetch_workers.count
        pace = Pace(max(WARM_LOADS_AT_ONCE_MAX, workers), rate_bytes=self.options.warm_rate_bytes)
        host = PoolHost(nursery, foreground, pace, handover_chunks, self.published_metrics, fetch_workers)
        self.role = JobRole(self.reader, self.client, config, lock, host)
        self.published_metrics.others = self.role.reports
        self.role.start(self.options.policy == ONESHOT, is_resumed=is_resumed)

    def plain_reader(self) -> ServerSource | None:
        """As `reader`, decrypted if the dataset is encrypted."""
        if self.client is None or self.reader is None:
            return None
        return readable(self.reader, self.client)

    def plain_source(self) -> Callable[[], Source]:
        """The current source of bytes for readers: of the job, if there is one, and decrypted."""
        reader = self.plain_reader()
        pooled = reader and decrypted(lambda: self.source if self.role is None else self.role.source, reader)
        if pooled and self.role is not None:
            self.role.files.decryption = pooled.decryption

        def current() -> Source:
            if self.role is None:
                return reader or self.source
            return pooled or self.role.source

        return current

    async def keep_pinned(self) -> None:
        if self.client is not None:
            await keep_pinned(self.client.pin, self.snapshot.header, self.holder, self._is_pinned.set)

    async def unpin(self) -> None:
        if self.client is not None:
            await unpin(self.client.pin, self.snapshot.header, self.holder)

    async def settled(self, is_resumed: bool = False) -> None:
        """Wait until the server has the pin (FIRST_PIN_TIMEOUT_S at most), so that no purge takes a chunk of it, and
        the nodes of the job are there. `is_resumed`: the pin of an earlier daemon holds.
        """
        if self.client is not None and not is_resumed:
            with trio.move_on_after(FIRST_PIN_TIMEOUT_S):
                await self._is_pinned.wait()
        if self.role is not None:
            await self.role.gathered.wait()

    async def close_source(self) -> None:
        """Write what waits for the disk; for DISK_CLOSE_TIMEOUT_S at most."""
        if self.reader is not None:
            await trio.to_thread.run_sync(self.reader.close)

    def raise_refusal(self) -> None:
        if self.role is not None and self.role.refusal is not None:
            raise self.role.refusal


def declare_daemon(
    metrics: Registry,
    snapshot: Snapshot,
    granted_bytes: int,
    used_bytes: Mapping[str, Callable[[], int]],
    clock: Callable[[], float],
) -> None:
    """`granted_bytes`: the memory that the daemon may use; `used_bytes`: what each part of it uses. `clock` is in
    seconds; the age is that since this call.
    """
    began_s, updated_s = clock(), snapshot.header.updated_ns / 1e9
    metrics.declare(catalogue.UPTIME_S, lambda: round(clock() - began_s, 3))
    metrics.declare(catalogue.MEMORY_GRANTED_BYTES).value = granted_bytes
    for part, read in used_bytes.items():
        metrics.declare(catalogue.MEMORY_USED_BYTES, read, part=part)
    metrics.gauge("memory.process_bytes", "Memory of the process, without mapped files.", process_bytes)
    metrics.gauge(
        "snapshot.age_s", "Time since the generation was made.", lambda: round(time.time() - updated_s)
    )


def declare_servers(metrics: Registry, client: ServerClient) -> None:
    """How the servers answer this process."""
    metrics.gauge("servers.failures", "Calls and connections that a server failed.", client.failures)
    metrics.counter(
        "servers.hedges_sent", "Reads sent to a second server, because one was slow.", client.hedges_sent
    )
    metrics.counter("servers.hedges_won", "Such reads that the second answered first.", client.hedges_won)
    metrics.counter("servers.retries", "Further attempts of calls that a server had failed.", client.retries)


def process_bytes() -> int:
    """Anonymous memory of this process, in bytes: without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
