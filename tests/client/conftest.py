"""One real server, and one dataset on it, for the tests that go all the way."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.settings.table import FUSE, IMAGE, OVERLAY
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from lab.network import clear
from tests.support.server import RunningServer, running_server

FILES = {f"train/{number}.txt": b"file %d\n" % number * 500 for number in range(40)}


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount this view")


@pytest.fixture(
    scope="session", params=[FUSE, *(pytest.param(name, marks=needs_root) for name in (OVERLAY, IMAGE))]
)
def view(request: pytest.FixtureRequest) -> str:
    """Each view of a mount."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Holds the dataset `letters`, with the files `FILES`."""
    # What readers have of daemons is seen better if the server shares nothing.
    with running_server(tmp_path_factory.mktemp("server"), ["--shared-memory", "0"]) as running:
        with Dataset(running.settings(), "letters", must_exist=False) as dataset:
            for path, content in FILES.items():
                dataset.put(path, content)
        yield running


@pytest.fixture
def options(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MountOptions:
    """Options for daemons of this test: they find the server and our packages, and touch nothing of the user's.

    In the FUSE view each lookup and `statfs` is a request of the daemon; tests of the other views choose them.
    """
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("DIESELFS_SERVER", "DIESELFS_HOME", "DIESELFS_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return MountOptions(server=server.unix, view=FUSE)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """As `tmp_path`, but other users may pass (the folder of all of pytest's folders is closed to them)."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """An empty folder; whatever is mounted there is unmounted in the end."""
    place = tmp_path / "mount"
    place.mkdir()
    yield place
    for mount in control.mounts():
        if mount.mountpoint == str(place):
            clear(place)
