"""A small dataset for the verbs that look at one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, running_server

MTIME_NS = 1_600_000_000_123_456_789


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server that no other test uses."""
    with running_server(tmp_path / "server", ["--attach-roots", str(tmp_path)]) as server:
        yield server


@pytest.fixture
def admin(dlcmd: Dlcmd, own_server: RunningServer) -> Dlcmd:
    """An administrator of that server."""
    return Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": own_server.unix})


@pytest.fixture
def pets(dlcmd: Dlcmd, dataset: str) -> str:
    """A dataset with files of 5, 4096 and 0 bytes, folders, an empty folder and a link."""
    root = dlcmd.folder / "pets"
    for name, size in (("train/cat.txt", 5), ("train/more/dog.bin", 4096), ("none", 0)):
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"x" * size)
        place.chmod(0o640)
    (root / "empty").mkdir()
    (root / "latest").symlink_to("train/cat.txt")
    _date(root)
    dlcmd("put", "-r", "-q", "pets/", f"dl://{dataset}/")
    return dataset


def _date(root: Path) -> None:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            os.utime(os.path.join(folder, name), ns=(0, MTIME_NS), follow_symlinks=False)
