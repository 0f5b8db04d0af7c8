"""Makes the kernel connection of a mount, or takes it over from the previous daemon. This module calls the kernel, and
blocks.
"""

import errno
import logging
import os
import struct
from contextlib import suppress
from typing import NamedTuple

from dieselfs.errors import MountError
from dieselfs.names import SCHEME
from dieselfs.settings.table import KERNEL
from dieselfs_client.mount.points.layers import Layers, detach
from dieselfs_client.mount.points.mount_table import PRIVATE_MARK, mount_at
from dieselfs_client.mount.points.mounting import (
    has_dead_mount,
    mount_device,
    prepare_mountpoint,
    replace_dead,
    unmount,
    unmount_dead,
)
from dieselfs_client.mount.points.options import MountOptions

_RESEND = 7
"""FUSE_NOTIFY_RESEND (Linux 6.9): requests that were read from the device and not answered can be read again.

Then the highest bit of `unique` is set; the reply has the same `unique`.
"""
_NOTICE = struct.Struct("=IiQ")

_log = logging.getLogger(__name__)


class KernelConnection(NamedTuple):
    """`device` is a descriptor of `/dev/fuse`; the holder of the connection closes it.

    - `number`: the `major:minor` of the files on the FUSE mount
    - `is_taken_over`: the previous daemon may have negotiated with the kernel already
    - `can_resend`: the kernel sends requests that this daemon leaves unanswered to the next one
    """

    device: int
    number: str
    is_taken_over: bool
    can_resend: bool


def resend(device: int) -> bool:
    """Make the kernel send all unanswered requests of a connection again; False if it cannot.

    No effect on a connection that is new or has ended.
    """
    try:
        os.write(device, _NOTICE.pack(_NOTICE.size, _RESEND, 0))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        if error.errno not in (errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED):
            raise
    return True


def connect(
    layers: Layers, dataset: str, options: MountOptions, inherited: int | None = None, is_clean: bool = False
) -> KernelConnection:
    """Make the FUSE mount of `layers`, or take over that of `inherited`, the device of the previous daemon.

    `is_clean`: that daemon left no request unanswered. If it did, and the kernel cannot send requests again, the old
    mount is detached with all its layers, and a new one made in its place. Then files that are open on the old one
    fail; the path works. Raises MountError.
    """
    if inherited is not None:
        can_resend = options.driver == KERNEL and resend(inherited)
        if can_resend or (is_clean and options.driver == KERNEL):
            record = mount_at(layers.fuse_place)
            return KernelConnection(inherited, record.device if record else "", True, can_resend)
        _log.warning(
            "%s: %s is mounted again, and reads of open files fail", cannot_resend(options), layers.mountpoint
        )
        detach(layers)
        os.close(inherited)
    prepare_mountpoint(layers.mountpoint)
    source = SCHEME + dataset + (PRIVATE_MARK if layers.has_cover else "")
    # For the control tree, in which there is a file to write to. Below another view, users reach nothing else.
    is_writable = layers.has_cover or options.scores
    place = _free_place(layers)
    device = mount_device(place, source, options.allow_other, options.noexec, is_writable)
    if place != layers.fuse_place:
        try:
            replace_dead(place, layers.fuse_place)
        except MountError:
            os.close(device)
            unmount(place, lazily=True)
            raise
    record = mount_at(layers.fuse_place)
    can_resend = options.driver == KERNEL and resend(device)
    return KernelConnection(device, record.device if record else "", False, can_resend)


def _free_place(layers: Layers) -> str:
    """Where to make the FUSE mount: not on a dead mount. Raises MountError."""
    if layers.has_cover or not has_dead_mount(layers.mountpoint):
        return layers.fuse_place
    if not layers.base:
        unmount_dead(layers.mountpoint)
        return layers.mountpoint
    with suppress(FileExistsError):  # of a process that was killed
        os.mkdir(layers.staging, mode=0o700)
    return layers.staging


def cannot_resend(options: MountOptions) -> str:
    """Why `can_resend` is False."""
    if options.driver != KERNEL:
        return "the driver pyfuse3 cannot take over a connection"
    return "this kernel cannot send requests again (Linux 6.9 and later can)"
