"""What a mount whose daemon is gone leaves mounted. This module calls the kernel.

It imports what it needs when it is called: that would double the memory of the supervisor.
"""

from contextlib import suppress


def remove_remains(mountpoint: str, device: str) -> None:
    """Unmount, if the mount with this `major:minor` still exists, with its layers; remove bases that nobody holds."""
    from dieselfs.errors import MountError
    from dieselfs_client.mount.points.layers import remove_bases
    from dieselfs_client.mount.points.mount_table import mount_at
    from dieselfs_client.mount.points.mounting import unmount

    record = mount_at(mountpoint)
    if record is not None and record.device == device:
        with suppress(MountError):  # another process has unmounted it
            unmount(mountpoint, lazily=True, is_cut_off=True)
    remove_bases()
