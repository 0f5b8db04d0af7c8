"""A small file system, for tests with a full disk."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size (as its option `size`) on a new folder; skip the test if that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mount is not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def disk_image(image: Path, size: str) -> Iterator[Path]:
    """Mount an ext4 file system in a file, which takes no room before it is written, on a new folder beside it. Skips
    the test where that is not possible.
    """
    folder = image.with_name(f"{image.name}.mounted")
    folder.mkdir()
    make = ["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1", str(image), size]
    mount = ["mount", "-o", "loop", str(image), str(folder)]
    for command in (make, mount):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            pytest.skip(f"{command[0]}: {ran.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def failing_disk(folder: Path, size_bytes: int) -> Iterator[Callable[[], object]]:
    """Mount an ext4 file system on a new folder. The function makes it read-only under open files, as the kernel does
    after an error of the disk. Skips the test where that is not possible.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    image = folder.with_name(f"{folder.name}.img")
    image.touch()
    os.truncate(image, size_bytes)
    folder.mkdir()
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(folder)]
    for command in (["mkfs.ext4", "-q", str(image)], mount):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            pytest.skip(f"{command[0]}: {ran.stderr.strip()}")
    try:
        found = subprocess.run(
            ["findmnt", "-no", "SOURCE", str(folder)], capture_output=True, text=True, check=True
        )
        trigger = Path("/sys/fs/ext4", Path(found.stdout.strip()).name, "trigger_fs_error")
        if not trigger.exists():
            pytest.skip(f"no {trigger}")
        yield lambda: trigger.write_text("1")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
