"""A network for each test; where there can be none, the tests are skipped."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab.cluster import Cluster, running_cluster
from lab.network import Host, Network
from tests.support.network import skipping


@pytest.fixture
def net() -> Iterator[Network]:
    with ExitStack() as stack:
        with skipping():
            network = stack.enter_context(Network())
        yield network


@pytest.fixture
def cluster(net: Network) -> Iterator[Cluster]:
    """Redis and two servers."""
    with ExitStack() as stack:
        with skipping():
            running = stack.enter_context(running_cluster(net))
        yield running


@pytest.fixture
def node(net: Network, cluster: Cluster) -> Host:
    """A host that uses the cluster."""
    return net.host("node")
