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

from dieselfs.config import Settings
from lab.namespace import wait_for
from lab.network import Host, Network, Unsuitable
from lab.redis_process import running_redis
from lab.server import RunningServer, running_server

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
    """`key_file` is that of a user who may do everything; `options` are those of each server."""

    net: Network
    redis: Host
    storages: tuple[Storage, ...]
    key_file: Path
    options: tuple[str, ...]

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
    """etcd of one member, on a host of its own. Raises Unsuitable where there is no etcd."""
    if shutil.which("etcd") is None:
        raise Unsuitable("needs etcd: apt-get install etcd-server")
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
def running_storage(host: Host, options: Sequence[str]) -> Iterator[Storage]:
    """A server on `host`, also again after it was killed; stopped in the end, if it still runs."""
    address = f"tcp://{host.address}:{PORT}"
    own = ("--listen", address, "--advertise", address, "--state", f"{host.folder}/state")
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_server(host.folder / "server", [*own, *options]))
        stack.callback(host.resume)  # it could not be asked to end while it is stopped
        yield Storage(host, server)


@contextmanager
def running_cluster(net: Network, servers: int = 2, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """Redis and so many servers, each on a host of its own and with these `options`; all stopped in the end.

    Raises Unsuitable where there is no Redis.
    """
    if shutil.which("redis-server") is None:
        raise Unsuitable("needs redis-server: apt-get install redis-server")
    with ExitStack() as stack:
        redis = net.host("redis")
        with redis.inside():
            database = stack.enter_context(running_redis(redis.folder / "data", *EVERYWHERE))
        stores = [
            *("--metadata", f"redis://{redis.address}:{database.port}/0"),
            *("--store", f"posix://{net.folder}/chunks"),
            *options,
        ]
        hosts = [net.host(f"storage-{number + 1}") for number in range(servers)]
        storages = [stack.enter_context(running_storage(host, stores)) for host in hosts]
        stack.callback(net.heal)  # a server that waits for Redis does not end soon
        key_file = storages[0].server.user("ada", all_datasets="admin")
        yield Cluster(net, redis, tuple(storages), key_file, tuple(stores))
