"""What a mount whose daemon is gone leaves mounted. This module calls the kernel.

It imports what it needs when it is called: that would double the memory of the supervisor.
"""

from contextlib import suppress


def remove_remains(mountpoint: str, device: str, is_stopped: bool = False) -> None:
    """Unmount, if the mount with this `major:minor` still exists, with its layers; remove bases that nobody holds.

    `is_stopped`: an operator has stopped the mount before it was ready, so dead mounts whose place it was to take go
    too.
    """
    from dieselfs.errors import MountError
    from dieselfs_client.mount.points.layers import remove_bases
    from dieselfs_client.mount.points.mount_table import mount_at
    from dieselfs_client.mount.points.mounting import unmount, unmount_dead

    record = mount_at(mountpoint)
    if record is not None and record.device == device:
        with suppress(MountError):  # another process has unmounted it
            unmount(mountpoint, lazily=True, is_cut_off=True)
    if is_stopped:
        with suppress(MountError):  # a live one is below
            unmount_dead(mountpoint)
    remove_bases()
