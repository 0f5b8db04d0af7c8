"""What is mounted for a test or a benchmark goes with it."""

from contextlib import suppress
from pathlib import Path

from dieselfs.errors import MountError
from dieselfs_client.mount.mount_table import mount_at
from dieselfs_client.mount.mounting import unmount


def clear(mountpoint: Path) -> None:
    """Remove every mount from `mountpoint`, dead ones too."""
    with suppress(MountError):
        while mount_at(str(mountpoint)) is not None:
            unmount(str(mountpoint), lazily=True)
