"""One real server for the tests that talk to it over its ports."""

from collections.abc import Iterator

import pytest

from tests.support.server import RunningServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running
