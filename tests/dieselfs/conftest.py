"""One real server for the tests of the library; each test uses datasets of its own."""

from collections.abc import Iterator

import pytest

from dieselfs.dataset import Dataset
from tests.support.server import RunningServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def data(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Dataset]:
    """An empty dataset, named after the test."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    dataset = Dataset(server.settings(), f"t-{name}"[:200], must_exist=False)
    dataset.create()
    yield dataset
    dataset.close()
