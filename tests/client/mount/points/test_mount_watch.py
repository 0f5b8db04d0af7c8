import os
from pathlib import Path

import pytest
import trio
import trio.testing

from dieselfs.settings.table import OVERLAY
from dieselfs_client.mount.points import mount_watch
from dieselfs_client.mount.points.layers import Layers
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mount_watch import uncovered
from dieselfs_client.mount.points.mounting import mount_kernel_file_system, unmount

WAIT_S = 60.0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_the_end_of_a_mount_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_watch, "WATCH_INTERVAL_S", 10 * WAIT_S)
    place, other = tmp_path / "place", tmp_path / "other"
    for folder in (place, other):
        folder.mkdir()
        mount_kernel_file_system("nothing", str(folder), "tmpfs")
    record = mount_at(str(place))
    assert record is not None
    seen = []

    async def watch() -> None:
        await uncovered(Layers(str(place), OVERLAY, number=record.device))
        seen.append(mount_at(str(place)))

    async def run() -> None:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await trio.testing.wait_all_tasks_blocked()
                unmount(str(other))
                await trio.sleep(0.05)
                assert not seen
                unmount(str(place))

    trio.run(run)
    assert seen == [None]


def test_a_mount_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    trio.run(uncovered, Layers(str(tmp_path), OVERLAY, number="0:0"))
