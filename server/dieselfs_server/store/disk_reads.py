"""How the kernel reads large files of a disk. This module reads `/sys`."""

import os
from pathlib import Path
from typing import NamedTuple

from dieselfs.limits import KIB

DEVICES = Path("/sys/dev/block")
"""The block devices by number; partitions are folders in that of their disk."""


class DiskReads(NamedTuple):
    """Of a disk: the file with the kernel's read-ahead, what it has, and the largest request, in bytes."""

    setting: Path
    read_ahead_bytes: int
    request_bytes: int


def disk_reads(folder: str, devices: Path = DEVICES) -> DiskReads | None:
    """Of the disk that `folder` is on. None for a file system without one, such as NFS, or if it is unknown."""
    try:
        device = os.stat(folder).st_dev
        place = (devices / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        queue = next(each / "queue" for each in (place, place.parent) if (each / "queue").is_dir())
        lengths = (int((queue / name).read_text()) * KIB for name in ("read_ahead_kb", "max_sectors_kb"))
        return DiskReads(queue / "read_ahead_kb", *lengths)
    except (OSError, ValueError, StopIteration):
        return None
