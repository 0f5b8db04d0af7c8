"""Waits for the end of a mount. This module reads the table of mounts."""

import select

import trio

from dieselfs_client.mount.points.layers import Layers, is_covered
from dieselfs_client.mount.points.mount_table import MOUNTINFO

WATCH_INTERVAL_S = 10.0
"""The table of mounts is read this often even if the kernel reports no change."""


async def uncovered(layers: Layers) -> None:
    """Wait until the mount that users see is gone. If cancelled, nothing stays behind."""
    with select.epoll() as changes, open(MOUNTINFO, "rb") as mounts:
        # The kernel reports a change of the table as an exceptional condition, once. `trio` waits for readable
        # descriptors only, and an epoll instance is one while it has something to report.
        changes.register(mounts, select.EPOLLPRI)
        while is_covered(layers):
            with trio.move_on_after(WATCH_INTERVAL_S):
                await trio.lowlevel.wait_readable(changes.fileno())
