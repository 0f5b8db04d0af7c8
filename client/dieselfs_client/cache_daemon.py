"""A node's daemon without a mount, which shares chunks with processes that read with the library; with a job, it takes
part in that. This module takes signals; `serve_cache` runs in the main thread.

    python -m dieselfs_client.cache_daemon DATASET [--memory SIZE] [--policy POLICY] [--report-fd N] ...
    python -m dieselfs_client.cache_daemon DATASET [--memory SIZE] --job NAME [--until-idle] [--snapshot FILE] ...

It ends at SIGTERM or SIGINT; mappings of readers stay valid. `control` starts and stops it, and
`dieselfs.cluster.daemon` starts it for programs of a job, by the name of this module.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import click
import trio

from dieselfs.cluster.node_lock import NodeLock
from dieselfs.errors import EXIT_OK, AlreadyExists, DieselfsError
from dieselfs.limits import MIB
from dieselfs.process.launch import LaunchReport
from dieselfs.process.system_limits import room_bytes
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import ONESHOT, CacheOptions, Place
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.socket import publish
from dieselfs_client.cluster.local_service import LocalService, bound
from dieselfs_client.cluster.node_paths import lock_of, path_of
from dieselfs_client.daemon.opening import open_dataset
from dieselfs_client.daemon.service import Service, declare_daemon, declare_servers
from dieselfs_client.memory.budget import EVICTABLE_BYTES, EVICTABLE_SHARE
from dieselfs_client.memory.node_cache import NodeCache, usable_bytes
from dieselfs_client.memory.room import granted
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.memory.warming import Pace, Warming

JOB_IDLE_S = 30.0
"""A daemon that a program started ends when no program of the job has run on the node for this long."""
JOB_IDLE_POLL_S = 1.0

_log = logging.getLogger(__name__)


async def serve_cache(
    snapshot: Snapshot,
    source: ServerSource,
    options: CacheOptions,
    on_ready: Callable[[], object] = lambda: True,
    client: ServerClient | None = None,
    is_until_idle: bool = False,
) -> None:
    """Share chunks of `snapshot` with the processes of this user on this node until SIGTERM or SIGINT comes.

    With `options.job`, take part in that job instead, and share chunks with its processes only; `is_until_idle`: end
    when no program of the job has run on this node for JOB_IDLE_S. `on_ready` is called once chunks are shared, and the
    daemon ends if it returns False.

    Raises AlreadyExists if another daemon does the same on this node, the error with which the job refuses the node,
    InvalidInput, AccessDenied, MountError, Unavailable.
    """
    service = Service(snapshot, source, options, client)
    memory_bytes = granted(options.memory_bytes, *room_bytes())
    job, path = service.config and service.config.job.name, path_of(snapshot, service.config)
    what = f"takes part in job {job}" if job else f"shares {snapshot.dataset}"

    async def announce() -> None:
        await service.settled()
        if on_ready() is False:  # the launcher no longer waits for the report
            nursery.cancel_scope.cancel()

    with (
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
        _only_daemon(lock_of(snapshot, service.config), what) as lock,
        nullcontext() if job else bound(path) as listener,
    ):
        async with trio.open_nursery() as nursery:
            service.join(lock, memory_bytes, nursery, Foreground())
            metrics, shared = service.metrics, None
            if listener is not None:
                reader = service.plain_reader() or source
                shared = _share(snapshot, reader, options, memory_bytes, listener, nursery, metrics)
            role = service.role
            used = _used_bytes(lambda: shared if role is None else role.node_cache)
            declare_daemon(metrics, snapshot, memory_bytes, used, trio.current_time)
            if client is not None:
                declare_servers(metrics, client)
            service.published_metrics.about = {"component": "cache", **service.labels()}
            nursery.start_soon(publish, service.published_metrics)
            if job and is_until_idle:
                nursery.start_soon(_end_when_unused, lock, nursery.cancel_scope)
            nursery.start_soon(service.keep_pinned)
            nursery.start_soon(announce)
            size = memory_bytes // MIB
            _log.info(
                "sharing generation %d of %s at %s, %d MiB", snapshot.generation, snapshot.dataset, path, size
            )
            await anext(signals)
            nursery.cancel_scope.cancel()
    await service.close_source()
    await service.unpin()
    service.raise_refusal()
    _log.info("%s is no longer shared", snapshot.dataset)


def _share(
    snapshot: Snapshot,
    source: ServerSource,
    options: CacheOptions,
    memory_bytes: int,
    listener: trio.socket.SocketType,
    nursery: trio.Nursery,
    metrics: Registry,
) -> NodeCache:
    """Share chunks with all processes of this user, outside any job; returns them."""
    foreground, pace = Foreground(), Pace(rate_bytes=options.warm_rate_bytes)
    memory_bytes = usable_bytes(memory_bytes, snapshot)
    evictable_bytes = min(EVICTABLE_BYTES, int(memory_bytes * EVICTABLE_SHARE))
    pinned_bytes = memory_bytes - evictable_bytes
    fetch = source.fetch_segment
    node_cache = NodeCache(
        snapshot, fetch, pinned_bytes, evictable_bytes, nursery, metrics=metrics, foreground=foreground
    )
    nursery.start_soon(LocalService(node_cache, snapshot).serve, listener)
    if options.policy == ONESHOT:
        chunks = range(snapshot.chunk_count)
        warming = Warming(node_cache, lambda: chunks, snapshot.chunk_payload_length, foreground, pace)
        warming.start()
        nursery.start_soon(warming.run)
    return node_cache


def _used_bytes(current: Callable[[], NodeCache | None]) -> dict[str, Callable[[], int]]:
    """Reads the memory of each part; 0 while another process is the node master, which has the node cache."""

    def pinned() -> int:
        return 0 if (node_cache := current()) is None else node_cache.policy.pinned_bytes

    def evictable() -> int:
        return 0 if (node_cache := current()) is None else node_cache.policy.evictable_bytes

    return {"pinned": pinned, "evictable": evictable}


@contextmanager
def _only_daemon(lock: NodeLock, what: str) -> Iterator[NodeLock]:
    """Be the one daemon without a mount that has this lock, by which it is found. Raises AlreadyExists."""
    if not lock.try_be_cache():
        lock.close()
        raise AlreadyExists(f"another daemon {what} on this node already; see dlcmd cache --stop")
    try:
        yield lock
    finally:
        lock.clear()


async def _end_when_unused(lock: NodeLock, serving: trio.CancelScope) -> None:
    await unused(lock)
    _log.info("no program of the job has run here for %g s", JOB_IDLE_S)
    serving.cancel()


async def unused(lock: NodeLock) -> None:
    """Wait until no program of the job has run on this node for JOB_IDLE_S."""
    idle_since_s = trio.current_time()
    while trio.current_time() - idle_since_s < JOB_IDLE_S:
        await trio.sleep(JOB_IDLE_POLL_S)
        if lock.has_users():
            idle_since_s = trio.current_time()


@click.command()
@click.argument("dataset")
@settings_options(Place.CACHE | Place.VERB | Place.DAEMON)
@click.option(
    "--snapshot", "snapshot_file", help="File of the snapshot to serve, even if a newer one exists."
)
@click.option("--report-fd", type=int)
@click.option("--until-idle", "is_until_idle", is_flag=True)
def main(
    dataset: str, snapshot_file: str | None, report_fd: int | None, is_until_idle: bool, given: dict[str, Any]
) -> None:
    """Share the chunks of DATASET with this node's processes of this user."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    os.umask(0o077)
    report = LaunchReport(report_fd)
    try:
        options = CacheOptions(**given)
        snapshot, source, client = open_dataset(dataset, options, snapshot_file)
        serve = partial(serve_cache, on_ready=report.ready, client=client, is_until_idle=is_until_idle)
        trio.run(serve, snapshot, source, options)
    except DieselfsError as error:
        _log.error("%s", error)
        report.failed(error)
        sys.exit(error.exit_code)
    sys.exit(EXIT_OK)


if __name__ == "__main__":
    main()
