"""Mounts with the image view, whose daemons are killed and replaced."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

from dieselfs.settings.table import IMAGE
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import MOUNTINFO, mount_at, parse_mountinfo
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.views.image_layout import IMAGE_NAME
from tests.client.conftest import FILES, needs_root

pytestmark = needs_root
KILLS = 4
TIMEOUT_S = 60.0


def image_of(mountpoint: Path) -> Path:
    """The image file of a mount."""
    tree = mount_at(str(mountpoint / ".dieselfs"))
    assert tree is not None
    records = parse_mountinfo(MOUNTINFO.read_bytes())
    (place,) = (
        record.mountpoint
        for record in records
        if record.device == tree.device and not record.mountpoint.endswith("/.dieselfs")
    )
    return Path(place) / os.fsdecode(IMAGE_NAME)


def forget(path: Path) -> None:
    """Drop the pages of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def wait_for_another(mountpoint: Path, daemon: int | None) -> int:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        (mount,) = (mount for mount in control.mounts() if mount.mountpoint == str(mountpoint))
        if mount.daemon not in (None, daemon):
            assert mount.daemon is not None
            return mount.daemon
        time.sleep(0.02)
    raise AssertionError("the daemon was not replaced")


def test_reads_never_notice_that_the_daemon_was_killed(options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, replace(options, view=IMAGE))
    image, is_over = image_of(mountpoint), Event()

    def read_everything() -> int:
        rounds = 0
        while not is_over.is_set():
            for path, content in FILES.items():
                forget(mountpoint / path)
                assert (mountpoint / path).read_bytes() == content
            forget(image)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_everything) for _ in range(2)]
        try:
            daemon = wait_for_another(mountpoint, None)
            for _ in range(KILLS):
                os.kill(daemon, signal.SIGKILL)
                daemon = wait_for_another(mountpoint, daemon)
        finally:
            is_over.set()
        assert all(reader.result(TIMEOUT_S) > 0 for reader in readers)
    assert sorted(os.listdir(mountpoint)) == ["train"]
    control.unmount(mountpoint)
    assert not image.exists()


def test_an_upgrade_keeps_the_image_that_the_kernel_has(options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, replace(options, view=IMAGE))
    before = wait_for_another(mountpoint, None)
    control.upgrade(mountpoint)
    assert wait_for_another(mountpoint, before)
    forget(image_of(mountpoint))
    for path, content in FILES.items():
        forget(mountpoint / path)
        assert (mountpoint / path).read_bytes() == content
