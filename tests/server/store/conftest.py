"""Ceph clusters and a gateway for the tests of the stores that are kept there: one of each kind for all of them."""

from collections.abc import Iterator

import pytest

from lab.ceph import CEPHX, NONE, RunningCeph, running_ceph
from tests.support.buckets import S3Server, running_gateway


@pytest.fixture(scope="session", params=[NONE, CEPHX])
def ceph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCeph]:
    """A cluster with the pool `data`, once without authentication and once with cephx."""
    with running_ceph(tmp_path_factory.mktemp("ceph"), request.param) as running:
        running.make_pool("data")
        yield running


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """radosgw: a real S3 server."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running
