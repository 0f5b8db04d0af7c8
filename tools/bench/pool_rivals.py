"""What the memory of a job is compared with: memcached on each node, by the client's sharding or through nutcracker on
each node, and Redis. This module starts processes, and opens sockets.

Their clients are the fastest that pip installs without a compiler: pylibmc (libmemcached), redis-py with hiredis. All
of them spread keys by hashing; a key is the path of a file, its value the content.
"""

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from zlib import crc32

from dieselfs.limits import MIB
from lab.namespace import wait_for
from lab.network import Host

MEMCACHED, NUTCRACKER, REDIS = "memcached", "memcached, nutcracker", "Redis"

_MEMCACHED_PORT, _NUTCRACKER_PORT, _REDIS_PORT = 11211, 22121, 6379
_THREADS = 2
"""Of each memcached; the machine has as many processors, and several servers."""


_TRIES_MAX = 3


class Cache(Protocol):
    """A client of a rival, for one process."""

    def get(self, path: str) -> bytes | None: ...

    def get_many(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """What there is of these."""
        ...

    def set_many(self, contents: Mapping[str, bytes]) -> None: ...


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers of a rival, one on each of some hosts. `open` makes a client, on the given host."""

    name: str
    hosts: Sequence[Host]
    processes: Sequence["subprocess.Popen[bytes]"]
    open: Callable[[Host], Cache]

    def kill(self, number: int) -> None:
        self.hosts[number].kill(self.processes[number])


def rival_lack(name: str) -> str | None:
    """Why a rival cannot be measured, None if it can."""
    program, module = {
        MEMCACHED: ("memcached", "pylibmc"),
        NUTCRACKER: ("nutcracker", "pylibmc"),
        REDIS: ("redis-server", "hiredis"),
    }[name]
    if shutil.which(program) is None:
        return f"there is no {program} (apt-get install {program})"
    return (
        None if importlib.util.find_spec(module) else f"there is no {module} (pip install 'dieselfs[bench]')"
    )


# -- servers ---------------------------------------------------------------------------------------------


@contextmanager
def running_memcached(hosts: Sequence[Host], memory_bytes: int) -> Iterator[Fleet]:
    """memcached on each host, of so much memory, until the end of the block. Clients shard by consistent hashing."""
    options = ["-u", "root", "-p", str(_MEMCACHED_PORT), "-m", str(memory_bytes // MIB), "-t", str(_THREADS)]
    servers = _addresses(hosts, _MEMCACHED_PORT)
    with _running(
        hosts, _MEMCACHED_PORT, lambda host: ["memcached", "-l", host.address, *options]
    ) as processes:
        yield Fleet(MEMCACHED, hosts, processes, lambda _: MemcachedCache(servers))


@contextmanager
def running_nutcracker(memcached: Fleet) -> Iterator[Fleet]:
    """A proxy on each host of the fleet, which knows all servers of it, until the end of the block."""
    servers = "".join(f"\n    - {address}:1" for address in _addresses(memcached.hosts, _MEMCACHED_PORT))

    def command(host: Host) -> list[str]:
        settings = host.folder / "nutcracker.yml"
        settings.write_text(
            f"pool:\n  listen: {host.address}:{_NUTCRACKER_PORT}\n  hash: fnv1a_64\n  distribution: ketama\n"
            f"  preconnect: true\n  servers:{servers}\n"
        )
        return ["nutcracker", "-c", str(settings), "-a", host.address]

    with _running(memcached.hosts, _NUTCRACKER_PORT, command) as processes:
        yield Fleet(
            NUTCRACKER,
            memcached.hosts,
            processes,
            lambda host: MemcachedCache(_addresses([host], _NUTCRACKER_PORT), is_text=True),
        )


@contextmanager
def running_redis_fleet(hosts: Sequence[Host], memory_bytes: int) -> Iterator[Fleet]:
    """redis-server on each host, which keeps nothing on disk, until the end of the block."""
    options = [
        "--port",
        str(_REDIS_PORT),
        "--save",
        "",
        "--maxmemory",
        str(memory_bytes),
        "--protected-mode",
        "no",
    ]
    servers = _addresses(hosts, _REDIS_PORT)
    with _running(
        hosts, _REDIS_PORT, lambda host: ["redis-server", "--bind", host.address, *options]
    ) as processes:
        yield Fleet(REDIS, hosts, processes, lambda _: RedisCache(servers))


def _addresses(hosts: Sequence[Host], port: int) -> list[str]:
    return [f"{host.address}:{port}" for host in hosts]


@contextmanager
def _running(
    hosts: Sequence[Host], port: int, command: Callable[[Host], list[str]]
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for host in hosts:
            processes.append(host.start(command(host)))
        for host in hosts:
            wait_for(partial(_listens, host, port), f"something listens on port {port} of {host.name}")
        yield processes
    finally:
        for host, process in zip(hosts, processes, strict=False):
            if process.poll() is None:
                host.kill(process)


def _listens(host: Host, port: int) -> bool:
    with host.inside(), socket.socket() as probe:
        return probe.connect_ex((host.address, port)) == 0


# -- clients ---------------------------------------------------------------------------------------------


class MemcachedCache:
    """A server that is gone is left out at the first failure, and its keys go to the others."""

    def __init__(self, servers: Sequence[str], is_text: bool = False) -> None:
        """`is_text`: nutcracker does not speak the binary protocol, which is the faster one."""
        import pylibmc

        behaviors: dict[str, int] = {"tcp_nodelay": 1, "ketama": 1}
        if not is_text:
            behaviors |= {"remove_failed": 1, "dead_timeout": 600}
        self._client: Any = pylibmc.Client(list(servers), binary=not is_text, behaviors=behaviors)
        self._failure: type[Exception] = pylibmc.Error
        self.get: Callable[[str], bytes | None] = self._client.get
        self.get_many: Callable[[Sequence[str]], Mapping[str, bytes]] = self._client.get_multi

    def set_many(self, contents: Mapping[str, bytes]) -> None:
        failed = self._client.set_multi(contents)
        assert not failed, f"{len(failed)} files could not be set"

    def get_what_lives(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """As `get_many`, where a server may have gone."""
        try:
            return self.get_many(paths)
        except self._failure:
            return {}

    def set_where_one_lives(self, contents: Mapping[str, bytes]) -> None:
        """As `set_many`, where a server may have gone: then the client notices, and tries once more."""
        left = list(contents)
        for _ in range(_TRIES_MAX):
            try:
                left = self._client.set_multi({path: contents[path] for path in left})
            except self._failure:
                continue
            if not left:
                return


class RedisCache:
    """Shards by a hash of the key, without which several servers would be no cluster; MGET to one after the other."""

    def __init__(self, servers: Sequence[str]) -> None:
        import redis

        places = [server.split(":") for server in servers]
        self._clients: list[Any] = [redis.Redis(host, int(port)) for host, port in places]

    def get(self, path: str) -> bytes | None:
        content: bytes | None = self._client(path).get(path)
        return content

    def get_many(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for number, shard in enumerate(self._shards(paths)):
            if shard:
                found.update(zip(shard, self._clients[number].mget(shard), strict=True))
        return found

    def set_many(self, contents: Mapping[str, bytes]) -> None:
        for number, shard in enumerate(self._shards(contents)):
            if shard:
                self._clients[number].mset({path: contents[path] for path in shard})

    def _client(self, path: str) -> Any:
        return self._clients[crc32(path.encode()) % len(self._clients)]

    def _shards(self, paths: Sequence[str] | Mapping[str, bytes]) -> list[list[str]]:
        shards: list[list[str]] = [[] for _ in self._clients]
        for path in paths:
            shards[crc32(path.encode()) % len(shards)].append(path)
        return shards
