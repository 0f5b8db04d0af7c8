"""A node's daemon without a mount: holds chunks in memory, and shares them with processes that read with the library.

    python -m dieselfs_client.cache_daemon DATASET --memory BYTES --policy POLICY [--report-fd N] ...
    python -m dieselfs_client.cache_daemon DATASET --memory BYTES --job NAME [--until-idle] [--snapshot FILE] ...

It ends at SIGTERM or SIGINT; what readers have mapped stays theirs. `cache_control` starts and stops it. With a job it
takes part in that, and serves its processes alone.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import trio

from dieselfs.cache.node_lock import NodeLock
from dieselfs.cache.node_socket import runtime_folder, socket_path
from dieselfs.cache.segment import Segment
from dieselfs.dataset import connect
from dieselfs.errors import EXIT_OK, AlreadyExists, DieselfsError
from dieselfs.limits import JOB_IDLE_POLL_S, JOB_IDLE_S, MIB
from dieselfs.meta.snapshot import Snapshot
from dieselfs.rpc.client import ServerClient
from dieselfs_client.foreground import Foreground
from dieselfs_client.job.part import JobPart, lock_of
from dieselfs_client.job.pool import PoolTerms, terms_of
from dieselfs_client.job_options import JobOptions, job_options
from dieselfs_client.memory import TRANSIT_BYTES, TRANSIT_SHARE, granted, room_bytes
from dieselfs_client.options import ON_DEMAND, ONESHOT, POLICIES
from dieselfs_client.pinning import Pin, holder_name, keep_pinned, unpin
from dieselfs_client.segment_room import usable_bytes
from dieselfs_client.sharing import ChunkSharing, listening
from dieselfs_client.shelf import Shelf
from dieselfs_client.warming import Pace, Warming

READY = "ready"

_log = logging.getLogger(__name__)


async def serve(
    snapshot: Snapshot,
    fetch: Callable[[int], Segment],
    path: Path,
    memory_bytes: int,
    policy: str = ON_DEMAND,
    on_ready: Callable[[], None] = lambda: None,
    pin: Pin | None = None,
    pace: Pace | None = None,
) -> None:
    """Share the chunks of `snapshot` at the socket `path` until SIGTERM or SIGINT.

    Raises AlreadyExists if another daemon shares them there, AccessDenied, MountError.
    """
    memory_bytes = usable_bytes(memory_bytes, snapshot)
    transit_bytes = min(TRANSIT_BYTES, int(memory_bytes * TRANSIT_SHARE))
    holder = holder_name(str(path), os.getpid())
    with (
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
        listening(path) as listener,
    ):
        async with trio.open_nursery() as nursery:
            foreground = Foreground()
            shelf = Shelf(
                snapshot,
                fetch,
                memory_bytes - transit_bytes,
                transit_bytes,
                nursery,
                foreground=foreground,
            )
            nursery.start_soon(ChunkSharing(shelf, snapshot).serve, listener)
            if pin is not None:
                nursery.start_soon(keep_pinned, pin, snapshot.header, holder)
            if policy == ONESHOT:
                chunks = range(snapshot.chunk_count)
                warming = Warming(shelf, lambda: chunks, snapshot.chunk_payload_length, foreground, pace)
                warming.start()
                nursery.start_soon(warming.run)
            _log.info("sharing generation %d of %s at %s", snapshot.generation, snapshot.dataset, path)
            on_ready()
            await anext(signals)
            nursery.cancel_scope.cancel()
    if pin is not None:
        await unpin(pin, snapshot.header, holder)
    _log.info("%s is not shared any more", snapshot.dataset)


async def serve_job(
    snapshot: Snapshot,
    client: ServerClient,
    terms: PoolTerms,
    policy: str = ON_DEMAND,
    on_ready: Callable[[], None] = lambda: None,
    pace: Pace | None = None,
    is_until_idle: bool = False,
) -> None:
    """Take part in a job, as the master of this node, or to become it, until SIGTERM or SIGINT; with `is_until_idle`
    also until no program of the job has been on this node for JOB_IDLE_S.

    Raises AlreadyExists if another such daemon does so here, what the job refuses it with, AccessDenied, Unavailable.
    """
    lock = lock_of(snapshot, terms)
    if not lock.try_be_cache():
        lock.close()
        raise AlreadyExists(f"another daemon takes part in job {terms.job.name} on this node already")
    holder = holder_name(f"{terms.job.name} {terms.job.node}", os.getpid())
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            part = JobPart(snapshot, client, terms, lock, nursery, pace=pace)
            part.start(is_oneshot=policy == ONESHOT)
            nursery.start_soon(keep_pinned, client.pin, snapshot.header, holder)
            if is_until_idle:
                nursery.start_soon(_end_unused, lock, nursery.cancel_scope)
            nursery.start_soon(_announce, part, terms.job.name, on_ready)
            await anext(signals)
            nursery.cancel_scope.cancel()
    await unpin(client.pin, snapshot.header, holder)
    if part.refusal is not None:
        raise part.refusal
    _log.info("%s: out of job %s", snapshot.dataset, terms.job.name)


async def _announce(part: JobPart, job: str, on_ready: Callable[[], None]) -> None:
    await part.gathered.wait()
    _log.info("taking part in job %s", job)
    on_ready()


async def _end_unused(lock: NodeLock, serving: trio.CancelScope) -> None:
    await unused(lock)
    _log.info("no program of the job has been here for %g s", JOB_IDLE_S)
    serving.cancel()


async def unused(lock: NodeLock) -> None:
    """Until no program of the job has been on this node for JOB_IDLE_S."""
    idle_since_s = trio.current_time()
    while trio.current_time() - idle_since_s < JOB_IDLE_S:
        await trio.sleep(JOB_IDLE_POLL_S)
        if lock.has_users():
            idle_since_s = trio.current_time()


@click.command()
@click.argument("dataset")
@click.option("--memory", "memory_bytes", type=int, required=True)
@click.option("--policy", type=click.Choice(POLICIES), default=POLICIES[0])
@click.option("--warm-rate", "warm_rate_bytes", type=int, default=0)
@click.option("--generation", type=int, default=0)
@click.option("--snapshot", "snapshot_file", help="The snapshot itself, whatever is newer by now.")
@click.option("--server")
@click.option("--key-file")
@click.option("--home")
@click.option("--report-fd", type=int)
@job_options
@click.option("--until-idle", "is_until_idle", is_flag=True)
def main(
    dataset: str,
    memory_bytes: int,
    policy: str,
    warm_rate_bytes: int,
    generation: int,
    snapshot_file: str | None,
    server: str | None,
    key_file: str | None,
    home: str | None,
    report_fd: int | None,
    job: JobOptions,
    is_until_idle: bool,
) -> None:
    """Share the chunks of DATASET with this node's processes of this user."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    os.umask(0o077)

    def report(text: str) -> None:
        if report_fd is not None:
            os.write(report_fd, (" ".join(text.splitlines()) + "\n").encode("utf-8", "surrogateescape"))
            os.close(report_fd)

    def ready() -> None:
        report(READY)

    try:
        memory_bytes = granted(memory_bytes, *room_bytes())
        with connect(
            dataset, server=server, key_file=key_file, home=home, generation=generation, job=""
        ) as opened:
            if snapshot_file is not None:
                opened.load_meta(snapshot_file, is_stale_allowed=True)
            snapshot, client, pace = opened.snapshot, opened.client, Pace(rate_bytes=warm_rate_bytes)
            _log.info("%s: %d MiB of memory", dataset, memory_bytes // MIB)
            if job.job is None:
                path = socket_path(runtime_folder(), snapshot.dataset, snapshot.digest)
                fetch = opened.chunks.fetch_segment
                trio.run(serve, snapshot, fetch, path, memory_bytes, policy, ready, client.pin, pace)
            else:
                terms = terms_of(job, client, snapshot.dataset, memory_bytes, os.environ)
                trio.run(serve_job, snapshot, client, terms, policy, ready, pace, is_until_idle)
    except DieselfsError as error:
        _log.error("%s", error)
        report(f"{type(error).__name__} {error}")
        sys.exit(error.exit_code)
    sys.exit(EXIT_OK)


if __name__ == "__main__":
    main()
