"""A network for each test; where there can be none, the tests are skipped."""

from collections.abc import Iterator

import pytest

from tests.support.network import Host, Network
from tests.support.network_cluster import Cluster, running_cluster


@pytest.fixture
def net() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture
def cluster(net: Network) -> Iterator[Cluster]:
    """Redis and two servers."""
    with running_cluster(net) as running:
        yield running


@pytest.fixture
def node(net: Network, cluster: Cluster) -> Host:
    """A host that uses the cluster."""
    return net.host("node")
