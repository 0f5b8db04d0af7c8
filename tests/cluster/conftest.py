"""A network for each test; where there can be none, the tests are skipped."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab.cluster import ETCD_PORT, Cluster, running_cluster, start_etcd, wait_until_registered
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


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """The same on a network of its own, for all tests of a module."""
    with ExitStack() as stack:
        with skipping():
            net = stack.enter_context(Network())
            running = stack.enter_context(running_cluster(net))
        yield running


@pytest.fixture
def etcd(net: Network) -> Host:
    with skipping():
        return start_etcd(net)


@pytest.fixture
def registered_cluster(net: Network, etcd: Host) -> Iterator[Cluster]:
    """Redis and two servers, which are registered at etcd."""
    with ExitStack() as stack:
        with skipping():
            options = ["--etcd", f"{etcd.address}:{ETCD_PORT}"]
            running = stack.enter_context(running_cluster(net, options=options))
        wait_until_registered(running)
        yield running


@pytest.fixture
def node(net: Network, cluster: Cluster) -> Host:
    """A host that uses the cluster."""
    return net.host("node")
