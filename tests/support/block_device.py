"""The files in which the kernel describes a disk."""

import os
from pathlib import Path


def devices_of(folder: Path, place: Path, read_ahead_kib: int, request_kib: int) -> Path:
    """A folder like `/sys/dev/block`, made in `place`: that of `folder` is the first partition of a disk."""
    queue = place / "disk" / "queue"
    queue.mkdir(parents=True)
    (queue / "read_ahead_kb").write_text(f"{read_ahead_kib}\n")
    (queue / "max_sectors_kb").write_text(f"{request_kib}\n")
    (place / "disk" / "disk1").mkdir()
    number = os.stat(folder).st_dev
    (place / f"{os.major(number)}:{os.minor(number)}").symlink_to("disk/disk1")
    return place
