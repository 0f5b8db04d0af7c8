"""A node's daemon without a mount: holds chunks in memory, and shares them with processes that read with the library.

    python -m dieselfs_client.cache_daemon DATASET --memory BYTES --policy POLICY [--report-fd N] ...

It ends at SIGTERM or SIGINT; what readers have mapped stays theirs. `cache_control` starts and stops it.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import trio

from dieselfs.cache.node_socket import runtime_folder, socket_path
from dieselfs.cache.segment import Segment
from dieselfs.dataset import connect
from dieselfs.errors import EXIT_OK, DieselfsError
from dieselfs.limits import MIB
from dieselfs.meta.snapshot import Snapshot
from dieselfs_client.foreground import Foreground
from dieselfs_client.memory import TRANSIT_BYTES, TRANSIT_SHARE, granted, room_bytes
from dieselfs_client.options import ONESHOT, POLICIES
from dieselfs_client.pinning import Pin, holder_name, keep_pinned, unpin
from dieselfs_client.sharing import ChunkSharing, allow_descriptors, listening
from dieselfs_client.shelf import Shelf
from dieselfs_client.warming import Pace, Warming

READY = "ready"

_log = logging.getLogger(__name__)


async def serve(
    snapshot: Snapshot,
    fetch: Callable[[int], Segment],
    path: Path,
    memory_bytes: int,
    policy: str = "on-demand",
    on_ready: Callable[[], None] = lambda: None,
    pin: Pin | None = None,
    pace: Pace | None = None,
) -> None:
    """Share the chunks of `snapshot` at the socket `path` until SIGTERM or SIGINT.

    Raises AlreadyExists if another daemon shares them there, AccessDenied, MountError.
    """
    transit_bytes = min(TRANSIT_BYTES, int(memory_bytes * TRANSIT_SHARE))
    holder = holder_name(str(path), os.getpid())
    allow_descriptors()
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


@click.command()
@click.argument("dataset")
@click.option("--memory", "memory_bytes", type=int, required=True)
@click.option("--policy", type=click.Choice(POLICIES), default=POLICIES[0])
@click.option("--warm-rate", "warm_rate_bytes", type=int, default=0)
@click.option("--server")
@click.option("--key-file")
@click.option("--home")
@click.option("--report-fd", type=int)
def main(
    dataset: str,
    memory_bytes: int,
    policy: str,
    warm_rate_bytes: int,
    server: str | None,
    key_file: str | None,
    home: str | None,
    report_fd: int | None,
) -> None:
    """Share the chunks of DATASET with this node's processes of this user."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    os.umask(0o077)

    def report(text: str) -> None:
        if report_fd is not None:
            os.write(report_fd, (" ".join(text.splitlines()) + "\n").encode("utf-8", "surrogateescape"))
            os.close(report_fd)

    try:
        memory_bytes = granted(memory_bytes, *room_bytes())
        with connect(dataset, server=server, key_file=key_file, home=home) as opened:
            snapshot, reader = opened.snapshot, opened.chunks
            path = socket_path(runtime_folder(), snapshot.dataset, snapshot.digest)
            _log.info("%s: %d MiB of memory", dataset, memory_bytes // MIB)
            trio.run(
                serve,
                snapshot,
                reader.fetch_segment,
                path,
                memory_bytes,
                policy,
                lambda: report(READY),
                opened.client.pin,
                Pace(rate_bytes=warm_rate_bytes),
            )
    except DieselfsError as error:
        _log.error("%s", error)
        report(f"{type(error).__name__} {error}")
        sys.exit(error.exit_code)
    sys.exit(EXIT_OK)


if __name__ == "__main__":
    main()
