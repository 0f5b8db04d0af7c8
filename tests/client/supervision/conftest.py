"""A dataset for verifying readers, and a log file for each mount."""

from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs_client.mount.points.options import MountOptions
from tests.support import verifying_reader
from tests.support.server import RunningServer


@pytest.fixture(scope="module")
def dataset(server: RunningServer) -> str:
    with Dataset(server.settings(), "verified", must_exist=False) as data:
        for number in range(100):
            data.put(f"{number}", verifying_reader.content_of(f"{number}"))
    return "verified"


@pytest.fixture
def options(options: MountOptions, tmp_path: Path) -> MountOptions:
    return replace(options, log_file=str(tmp_path / "mount.log"))
