"""dieselfs on a network: hosts with Redis, servers and etcd. The servers share a folder of chunks, as on Lustre."""

import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dieselfs.settings import Settings
from dieselfs.telemetry import catalogue
from lab.namespace import wait_for
from lab.network import Host, Network, Unsuitable
from lab.redis_process import running_redis
from lab.server import RunningServer, running_server

PORT = 7070
ETCD_PORT = 2379
EVERYWHERE = ("--bind", "0.0.0.0", "--protected-mode", "no")


@dataclass(frozen=True)
class Storage:
    """A server on its host."""

    host: Host
    server: RunningServer

    @property
    def address(self) -> str:
        return f"tcp://{self.host.address}:{PORT}"

    def connections(self) -> int:
        """Without the one that this call makes."""
        with closing(self.server.client()) as client:
            return client.status().metrics[catalogue.RPC_CONNECTIONS.name] - 1


@dataclass(frozen=True)
class Cluster:
    """`key_file`: of an administrator; `options`: of each server."""

    net: Network
    redis: Host
    storages: tuple[Storage, ...]
    key_file: Path
    options: tuple[str, ...]

    @property
    def servers(self) -> str:
        """The server list of clients."""
        return ",".join(storage.address for storage in self.storages)

    def settings(self, host: Host) -> Settings:
        """For a client on `host`."""
        folder = host.folder
        return Settings(folder / "no-home", folder / "client-cache", self.servers, str(self.key_file))

    def busiest(self) -> Storage:
        busiest = max(self.storages, key=Storage.connections)
        assert busiest.connections() > 0, "no server has a client"
        return busiest


def start_etcd(net: Network) -> Host:
    """etcd with one member, on its own host. Raises Unsuitable."""
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
    host.start(words)
    wait_for(partial(listens, host, ETCD_PORT), "etcd listens")
    return host


def listens(host: Host, port: int) -> bool:
    with host.inside(), socket.socket() as probe:
        return probe.connect_ex((host.address, port)) == 0


def wait_until_registered(cluster: Cluster) -> None:
    """At etcd."""
    logs = [storage.server.log for storage in cluster.storages]
    wait_for(lambda: all("registered at etcd" in log() for log in logs), "all servers are registered")


@contextmanager
def running_storage(host: Host, options: Sequence[str]) -> Iterator[Storage]:
    """A server on `host` until the end of the block, also after a kill."""
    address = f"tcp://{host.address}:{PORT}"
    own = ("--listen", address, "--advertise", address, "--state", f"{host.folder}/state")
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_server(host.folder / "server", [*own, *options]))
        stack.callback(host.resume)  # a stopped process takes no SIGTERM
        yield Storage(host, server)


@contextmanager
def running_cluster(net: Network, servers: int = 2, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """Redis and servers, each on its own host, until the end of the block. Raises Unsuitable."""
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
        stack.callback(net.heal)  # a server that waits for Redis ends late
        key_file = storages[0].server.user("ada", all_datasets="admin")
        yield Cluster(net, redis, tuple(storages), key_file, tuple(stores))
