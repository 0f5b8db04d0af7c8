"""One embedded home and one server for the tests of dlcmd; each test uses datasets of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs_tools.private_home import private_home
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
def dataset(request: pytest.FixtureRequest) -> str:
    """A name for a dataset of this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return name[-100:].strip("-")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running
