"""One embedded home and one server for the tests of dlcmd; each test uses datasets of its own."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs_tools.cli.private_home import private_home
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, running_server


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    with private_home() as folder:
        yield folder


@pytest.fixture
def dlcmd(home: Path, tmp_path: Path) -> Dlcmd:
    """Embedded, in an empty folder."""
    return Dlcmd(home, tmp_path)


@pytest.fixture
def own_dlcmd(tmp_path: Path) -> Iterator[Dlcmd]:
    """Embedded, in a home that no other test uses: its server starts with the variables of the first command."""
    with private_home() as folder:
        yield Dlcmd(folder, tmp_path)


@pytest.fixture
def dataset(request: pytest.FixtureRequest) -> str:
    """A name for a dataset of this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return name[-100:].strip("-")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=8m") != 0:
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield place
    finally:
        libc.umount2(os.fsencode(place), 2)
