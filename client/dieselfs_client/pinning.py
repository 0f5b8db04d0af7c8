"""Tells the server which generation a mount reads, so that no purge takes its chunks away."""

import logging
import socket
from collections.abc import Callable

import trio

from dieselfs.errors import DieselfsError
from dieselfs.meta.snapshot_format import SnapshotHeader

PIN_INTERVAL_S = 60.0
PIN_LEASE_S = 300
"""A server that cannot be reached for a while must not cost the pin: several intervals fit into a lease."""

UNPIN_TIMEOUT_S = 2.0
"""A mount that ends waits no longer for the server to hear of it; the lease runs out by itself."""

assert PIN_LEASE_S >= 3 * PIN_INTERVAL_S

_log = logging.getLogger(__name__)

Pin = Callable[[str, str, int, int, int], None]
"""`ServerClient.pin`: dataset, holder, generation, its time in nanoseconds since 1970, lease in seconds."""


def holder_name(mountpoint: str, process: int) -> str:
    """Who holds the pin: node, process, and where it mounts."""
    return f"{socket.gethostname()[:64]} {process} {mountpoint[-100:]}".encode("ascii", "replace").decode()


async def keep_pinned(pin: Pin, header: SnapshotHeader, holder: str) -> None:
    """Renew the pin until cancelled. Never raises for the server's sake: a mount goes on without."""
    while True:
        await _tell(pin, header, holder, PIN_LEASE_S)
        await trio.sleep(PIN_INTERVAL_S)


async def unpin(pin: Pin, header: SnapshotHeader, holder: str) -> None:
    """Take the pin back, if the server hears of it in time. If cancelled, it does so all the same."""
    with trio.CancelScope(shield=True), trio.move_on_after(UNPIN_TIMEOUT_S):
        await _tell(pin, header, holder, 0)


async def _tell(pin: Pin, header: SnapshotHeader, holder: str, lease_s: int) -> None:
    try:
        await trio.to_thread.run_sync(
            pin,
            header.dataset,
            holder,
            header.generation,
            header.updated_ns,
            lease_s,
            abandon_on_cancel=True,
        )
    except DieselfsError as error:
        _log.warning("cannot tell the server which generation is mounted: %s", error)
