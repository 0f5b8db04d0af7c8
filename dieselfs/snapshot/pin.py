"""Pins the generation of a mount at the server, so that purge keeps its chunks. This module reads the host name."""

import logging
import socket
from collections.abc import Callable

import trio

from dieselfs.errors import DieselfsError
from dieselfs.snapshot.format import SnapshotHeader

PIN_INTERVAL_S = 60.0
PIN_LEASE_S = 300
"""Several intervals, so that the pin survives a short failure of the server."""

UNPIN_TIMEOUT_S = 2.0
"""A mount that ends waits this long for the server; otherwise the lease expires."""

assert PIN_LEASE_S >= 3 * PIN_INTERVAL_S

_log = logging.getLogger(__name__)

PinCall = Callable[[str, str, int, int, int], None]
"""`ServerClient.pin`: dataset, holder, generation, its time in nanoseconds since 1970, lease in seconds."""


def node_name() -> str:
    """The name of this node in the holders of pins."""
    return socket.gethostname()[:64].encode("ascii", "replace").decode()


def holder_name(mountpoint: str, process: int) -> str:
    """The holder of a pin: node, process, and mount point."""
    return f"{node_name()} {process} {mountpoint[-100:]}".encode("ascii", "replace").decode()


async def keep_pinned(
    pin: PinCall, header: SnapshotHeader, holder: str, on_sent: Callable[[], object] = lambda: None
) -> None:
    """Renew the pin until cancelled. Does not raise errors of the server: the mount works without a pin.

    `on_sent` is called after each reply of the server, and each failure.
    """
    while True:
        await _send_pin(pin, header, holder, PIN_LEASE_S)
        on_sent()
        await trio.sleep(PIN_INTERVAL_S)


async def unpin(pin: PinCall, header: SnapshotHeader, holder: str) -> None:
    """Release the pin, within UNPIN_TIMEOUT_S; a cancellation does not stop it."""
    with trio.CancelScope(shield=True), trio.move_on_after(UNPIN_TIMEOUT_S):
        await _send_pin(pin, header, holder, 0)


async def _send_pin(pin: PinCall, header: SnapshotHeader, holder: str, lease_s: int) -> None:
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
        _log.warning("cannot pin the mounted generation at the server: %s", error)
