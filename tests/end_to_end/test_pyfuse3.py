"""The other driver in the main job: an epoch read by plan, whose files are pushed ahead of the readers."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.settings.table import PYFUSE3
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from lab.network import clear
from tests.support.plan_reader import content_of, read
from tests.support.server import running_server

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
pytest.importorskip("pyfuse3", reason="needs pyfuse3 (pip install '.[pyfuse3]')")

FILES = 1000
READERS = 2


def read_share(mountpoint: Path, rank: int) -> list[str]:
    """The paths of a reader's share, whose files hold what was stored."""
    paths = (mountpoint / f".dieselfs/shuffle/group=1,rank={rank},world={READERS}").read_text().splitlines()
    for path in paths:
        assert read(f"{mountpoint}/{path}") == content_of(path)
    return paths


def test_an_epoch_by_plan(tmp_path: Path) -> None:
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    stored = sorted(f"{number % 7}/{number}" for number in range(FILES))
    with running_server(tmp_path / "server") as server:
        with Dataset(server.settings(), "images", must_exist=False) as data:
            for path in stored:
                data.put(path, content_of(path))
        options = MountOptions(
            server=server.unix, memory_bytes=40 * MIB, driver=PYFUSE3, log_file=str(tmp_path / "mount.log")
        )
        control.mount("images", mountpoint, options)
        try:
            with ThreadPoolExecutor(READERS) as pool:
                shares = list(pool.map(lambda rank: read_share(mountpoint, rank), range(READERS)))
            assert sorted(path for share in shares for path in share) == stored
            assert json.loads((mountpoint / ".dieselfs/stats").read_bytes())["prefetch"]["pushed_files"] > 0
        finally:
            clear(mountpoint)
