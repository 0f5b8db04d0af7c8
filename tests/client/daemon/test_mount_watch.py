"""The daemon of a mount waits for the end of the mount that users see."""

import os
from pathlib import Path

import pytest
import trio
import trio.testing

from dieselfs.settings.table import OVERLAY
from dieselfs_client.daemon import mount_daemon
from dieselfs_client.daemon.mount_daemon import uncovered
from dieselfs_client.mount.points.layers import Layers, is_covered
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mounting import mount_kernel_file_system, unmount

WAIT_S = 60.0


def mount_tmpfs(folder: Path) -> Layers:
    folder.mkdir()
    mount_kernel_file_system("nothing", str(folder), "tmpfs")
    record = mount_at(str(folder))
    assert record is not None
    return Layers(str(folder), OVERLAY, number=record.device)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_the_end_of_a_mount_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_daemon, "WATCH_S_MIN", 10 * WAIT_S)
    monkeypatch.setattr(mount_daemon, "WATCH_S_MAX", 10 * WAIT_S)
    layers = mount_tmpfs(tmp_path / "place")
    mount_tmpfs(tmp_path / "other")
    seen = []

    async def watch() -> None:
        await uncovered(layers)
        seen.append(mount_at(layers.mountpoint))

    async def run() -> None:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await trio.testing.wait_all_tasks_blocked()
                unmount(str(tmp_path / "other"))
                await trio.sleep(0.05)
                assert not seen
                unmount(layers.mountpoint)

    trio.run(run)
    assert seen == [None]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_an_end_between_a_look_and_the_wait_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`epoll` loses this change, which follows another one when the control tree of a view is unmounted first."""
    monkeypatch.setattr(mount_daemon, "WATCH_S_MAX", 10 * WAIT_S)
    layers = mount_tmpfs(tmp_path / "place")
    look = is_covered

    def unmounted_after(layers: Layers) -> bool:
        was_covered = look(layers)
        if was_covered:
            unmount(layers.mountpoint)
        return was_covered

    monkeypatch.setattr(mount_daemon, "is_covered", unmounted_after)

    async def run() -> None:
        with trio.fail_after(WAIT_S):
            await uncovered(layers)

    trio.run(run)
    assert mount_at(layers.mountpoint) is None


def test_a_mount_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    trio.run(uncovered, Layers(str(tmp_path), OVERLAY, number="0:0"))
