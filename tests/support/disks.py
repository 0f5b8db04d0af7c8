"""A separate disk for a test: XFS in a file, with real power cuts."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_DISK_BYTES = 320 << 20
_TOOLS = ("mkfs.xfs", "xfs_io", "mount", "umount", "losetup")


class Disk:
    """XFS on a loop device over `image`, mounted on `folder`."""

    def __init__(self, image: Path, folder: Path) -> None:
        self._image = image
        self.folder = folder

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.folder))

    def unmount(self) -> None:
        _run("umount", str(self.folder))

    def cut_power(self) -> None:
        """Lose everything that was not written to the disk, at one moment; then mount the disk again."""
        _run("xfs_io", "-x", "-c", "shutdown", str(self.folder))
        _run("umount", "-l", str(self.folder))
        # A lazy unmount releases the device when the last file is closed; the processes were killed before.
        self.mount()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def xfs_disk(folder: Path) -> Iterator[Disk]:
    """A new disk, always unmounted at the end. Skips the test if loop devices or XFS cannot be used."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"a power cut needs root{''.join(f', {name}' for name in missing)}")
    image, mountpoint = folder / "disk.img", folder / "disk"
    mountpoint.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    _run("mkfs.xfs", "-q", str(image))
    disk = Disk(image, mountpoint)
    done = subprocess.run(
        ["mount", "-o", "loop", str(image), str(mountpoint)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"loop devices or XFS cannot be used here: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(mountpoint)], capture_output=True, check=False)
