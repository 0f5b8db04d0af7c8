"""dieselfs on a network: Redis on one host, a server on each of several, etcd on another if asked for, and hosts that
use them.

The servers' chunks lie in a folder that they share, as on Lustre.
"""

import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from dieselfs.config import Settings
from tests.support.network import Host, Network
from tests.support.network_namespace import wait_for
from tests.support.redis import running_redis
from tests.support.server import RunningServer, running_server

PORT = 7070
ETCD_PORT = 2379
EVERYWHERE = ("--bind", "0.0.0.0", "--protected-mode", "no")


@dataclass(frozen=True)
class Storage:
    """A server and the host that it runs on."""

    host: Host
    server: RunningServer

    @property
    def address(self) -> str:
        """For clients on the network."""
        return f"tcp://{self.host.address}:{PORT}"

    def connections(self) -> int:
        """How many clients it has, but for the one that asks."""
        client = self.server.client()
        try:
            return client.status().connections - 1
        finally:
            client.close()


@dataclass(frozen=True)
class Cluster:
    """`key_file` is that of a user who may do everything."""

    net: Network
    redis: Host
    storages: tuple[Storage, ...]
    key_file: Path

    @property
    def servers(self) -> str:
        """All of them, as an option for clients."""
        return ",".join(storage.address for storage in self.storages)

    def settings(self, host: Host) -> Settings:
        """For a client on `host`."""
        return Settings(
            home=host.folder / "no-home",
            cache=host.folder / "client-cache",
            server=self.servers,
            key_file=str(self.key_file),
        )

    def busiest(self) -> Storage:
        count, storage = max(
            ((storage.connections(), storage) for storage in self.storages), key=lambda pair: pair[0]
        )
        assert count > 0, "doing harm to a server that nobody uses would show nothing"
        return storage


def start_etcd(net: Network) -> Host:
    """etcd of one member, on a host of its own. Skips the test where there is no etcd."""
    if shutil.which("etcd") is None:
        pytest.skip("needs etcd: apt-get install etcd-server")
    host = net.host("etcd")
    client, peer = f"http://{host.address}:{ETCD_PORT}", f"http://{host.address}:{ETCD_PORT + 1}"
    words = [
        *("etcd", "--name", "test", "--data-dir", str(host.folder / "etcd")),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"test={peer}"),
    ]
    process = host.start(words)

    def is_ready() -> bool:
        assert process.poll() is None, host.log()
        with host.inside(), socket.socket() as probe:
            return probe.connect_ex((host.address, ETCD_PORT)) == 0

    wait_for(is_ready, "etcd listens")
    return host


def wait_until_registered(cluster: Cluster) -> None:
    """With etcd."""
    for storage in cluster.storages:
        wait_for(partial(_has_registered, storage), f"{storage.address} is registered")


def _has_registered(storage: Storage) -> bool:
    return "registered at etcd" in storage.server.log()


@contextmanager
def running_cluster(net: Network, servers: int = 2, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """Redis and so many servers, each on a host of its own and with these `options`; all stopped in the end."""
    with ExitStack() as stack:
        redis = net.host("redis")
        with redis.inside():
            database = stack.enter_context(running_redis(redis.folder / "data", *EVERYWHERE))
        storages = []
        for number in range(servers):
            host = net.host(f"storage-{number + 1}")
            own = [
                *("--listen", f"tcp://{host.address}:{PORT}"),
                *("--metadata", f"redis://{redis.address}:{database.port}/0"),
                *("--store", f"posix://{net.folder}/chunks", "--state", f"{host.folder}/state"),
                *("--advertise", f"tcp://{host.address}:{PORT}"),
            ]
            with host.inside():
                server = stack.enter_context(running_server(host.folder / "server", [*own, *options]))
            stack.callback(host.resume)  # a server that is stopped could not be asked to end
            storages.append(Storage(host, server))
        stack.callback(net.heal)  # nor would it end soon while it waits for Redis
        key_file = storages[0].server.user("ada", all_datasets="admin")
        yield Cluster(net, redis, tuple(storages), key_file)
