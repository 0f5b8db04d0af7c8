"""One radosgw for the tests of the client."""

from collections.abc import Iterator

import pytest

from tests.support.buckets import S3Server, running_gateway


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """radosgw: a real S3 server."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running
