"""The life of a mount behind libfuse, which cannot take a connection over: its mount is made anew."""

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.settings.table import PYFUSE3
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.options import MountOptions
from tests.client.conftest import FILES

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
pytest.importorskip("pyfuse3", reason="needs pyfuse3 (pip install '.[pyfuse3]')")


@pytest.fixture
def pyfuse3_options(options: MountOptions) -> MountOptions:
    return replace(options, driver=PYFUSE3)


def read_one(mountpoint: Path) -> bytes:
    return (mountpoint / "train/7.txt").read_bytes()


def listed(mountpoint: Path) -> control.Mount:
    (mount,) = [mount for mount in control.mounts() if mount.mountpoint == str(mountpoint)]
    return mount


def test_mount_and_unmount(pyfuse3_options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, pyfuse3_options)
    assert read_one(mountpoint) == FILES["train/7.txt"]
    assert b'"driver": "pyfuse3"' in (mountpoint / ".dieselfs/info").read_bytes()
    assert not listed(mountpoint).resends
    control.unmount(mountpoint)
    assert os.listdir(mountpoint) == []


def test_after_a_crash_the_path_works(pyfuse3_options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, pyfuse3_options)
    before = listed(mountpoint)
    assert before.daemon is not None
    os.kill(before.daemon, signal.SIGKILL)
    content = None
    while content is None:
        with suppress(OSError):
            content = read_one(mountpoint)
    assert content == FILES["train/7.txt"]
    assert listed(mountpoint).restarts == 1
    control.unmount(mountpoint)


def test_after_an_upgrade_the_path_works(pyfuse3_options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, pyfuse3_options)
    assert read_one(mountpoint) == FILES["train/7.txt"]
    assert control.upgrade(mountpoint).upgrades == 1
    assert read_one(mountpoint) == FILES["train/7.txt"]
    control.unmount(mountpoint)


def test_a_package_that_is_missing_is_said_before_anything_is_mounted(
    pyfuse3_options: MountOptions, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(name: str) -> None:
        raise MountError(f"the driver {name} cannot be used")

    monkeypatch.setattr("dieselfs_client.mount.drivers.choice.driver_class", check)
    with pytest.raises(MountError, match="pyfuse3 cannot be used"):
        control.mount("letters", mountpoint, pyfuse3_options)
    assert mount_at(str(mountpoint)) is None
