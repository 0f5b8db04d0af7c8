"""The process behind a mount: mounts, serves until it is unmounted or told to stop, and leaves nothing behind.

This module calls the kernel and takes signals; `serve` runs in the main thread.
"""

import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

import trio

from dieselfs.errors import MountError
from dieselfs.limits import MIB
from dieselfs.meta.snapshot import Snapshot
from dieselfs_client.counted_source import NodeSource
from dieselfs_client.mount.kernel_driver import KernelDriver
from dieselfs_client.mount.mount_table import mount_at
from dieselfs_client.mount.mounting import mount_device, prepare_mountpoint, raise_read_ahead, unmount
from dieselfs_client.mount.page_cache import PageCache
from dieselfs_client.node import Node, allotment_of
from dieselfs_client.options import MountOptions
from dieselfs_client.pinning import Pin, holder_name, keep_pinned

STOP_GRACE_S = 5.0
"""After a signal to stop, files that are open are served for so long."""
LOG_BYTES_MAX = 16 * MIB
"""The log file; it is kept once more when full."""

_log = logging.getLogger(__name__)


async def serve(
    snapshot: Snapshot,
    source: NodeSource,
    mountpoint: str,
    options: MountOptions,
    on_ready: Callable[[], None] = lambda: None,
    pin: Pin | None = None,
) -> None:
    """Mount `snapshot` on `mountpoint` (resolved) and serve it until it is unmounted, or SIGTERM or SIGINT comes.

    `on_ready` is called once the mount can be used; `pin` keeps the server from purging what is mounted. Raises
    MountError. However it ends, cancelled or by a fault, the mount is gone afterwards.
    """
    allotment = allotment_of(snapshot, options)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        await trio.to_thread.run_sync(prepare_mountpoint, mountpoint)
        device = await trio.to_thread.run_sync(
            mount_device, mountpoint, snapshot.dataset, options.allow_other, options.noexec
        )
        record = mount_at(mountpoint)
        try:
            async with trio.open_nursery() as answering:
                # The kernel is answered for as long as anything else runs: pushing waits for its lookups.
                async with trio.open_nursery() as nursery:
                    pages = PageCache(device, mountpoint, snapshot)
                    node = Node(snapshot, source, options, allotment, pages, nursery)
                    user = os.getuid() if options.uid is None else options.uid
                    group = os.getgid() if options.gid is None else options.gid
                    driver = KernelDriver(device, node.core, node.reads, node.control, user, group)
                    answering.start_soon(_answer, driver, nursery.cancel_scope)
                    nursery.start_soon(_announce, driver, mountpoint, on_ready, nursery.cancel_scope)
                    if pin is not None:
                        nursery.start_soon(keep_pinned, pin, snapshot.header, holder_name(mountpoint))
                    nursery.start_soon(_stop_at_signal, signals, mountpoint, nursery.cancel_scope)
                    _log.info(
                        "serving generation %d of %s on %s", snapshot.generation, snapshot.dataset, mountpoint
                    )
                answering.cancel_scope.cancel()
        finally:
            os.close(device)  # whatever still waits is answered by the kernel now
            if record is not None and mount_at(mountpoint) == record:
                with contextlib.suppress(MountError):
                    unmount(mountpoint, lazily=True)
            _log.info("%s is unmounted", mountpoint)
        if driver.refusal is not None:
            raise MountError(f"{mountpoint}: {driver.refusal}")


async def _answer(driver: KernelDriver, others: trio.CancelScope) -> None:
    """Answer the kernel until the mount is gone; nothing else has a purpose then."""
    await driver.run()
    others.cancel()


async def _announce(
    driver: KernelDriver, mountpoint: str, on_ready: Callable[[], None], serving: trio.CancelScope
) -> None:
    await driver.agreed.wait()
    if driver.refusal is not None:
        serving.cancel()
        return
    if not await trio.to_thread.run_sync(raise_read_ahead, mountpoint):
        _log.info("large files are read in pieces of 128 KiB: only root may raise read_ahead_kb")
    on_ready()


async def _stop_at_signal(signals: AsyncIterator[int], mountpoint: str, serving: trio.CancelScope) -> None:
    """Unmount at the first signal; stop serving those who have files open after a while, or at the next signal."""
    await anext(signals)
    try:
        await trio.to_thread.run_sync(unmount, mountpoint)
    except MountError as error:
        _log.info("%s; files that are open are served for %g s more", error, STOP_GRACE_S)
        serving.deadline = trio.current_time() + STOP_GRACE_S
        with contextlib.suppress(MountError):  # somebody else was faster
            await trio.to_thread.run_sync(lambda: unmount(mountpoint, lazily=True))
    await anext(signals)
    serving.cancel()


def default_log_file(mountpoint: str) -> Path:
    """Where the daemon of a mount writes its log."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return state / "dieselfs" / f"mount-{mountpoint.strip('/').replace('/', '-')[-200:]}.log"


def open_log(path: Path) -> None:
    """Send the log, and whatever goes to standard error, to a file that only this user can read. Raises MountError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.dup2(descriptor, 2)  # and let go of the terminal, or the pipe, of whoever mounts
        os.close(descriptor)
        handler = RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1, errors="backslashreplace")
    except OSError as error:
        raise MountError(f"log file {path}: {error.strerror}") from None
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
