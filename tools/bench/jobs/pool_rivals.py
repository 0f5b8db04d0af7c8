"""Rivals of the memory of a job: memcached, by the client's sharding or through nutcracker, and Redis, on each node.

Their clients are the fastest for Python: pylibmc, and redis-py with hiredis. All hash keys over
the servers; a key is the path of a file, its value the content. This module starts processes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from subprocess import Popen
from typing import Any
from zlib import crc32

from bench.harness.figures import RunFailed
from bench.harness.forms import lack
from dieselfs.limits import MIB
from lab.cluster import listens
from lab.namespace import wait_for
from lab.network import Host

MEMCACHED, NUTCRACKER, REDIS = "memcached", "memcached, nutcracker", "Redis"
_PROGRAMS = {MEMCACHED: "memcached", NUTCRACKER: "nutcracker", REDIS: "redis-server"}
_PORTS = {MEMCACHED: 11211, NUTCRACKER: 22121, REDIS: 6379}
_THREADS = 2
"""Of each memcached."""
_TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers of a rival, one on each host, or the reason why there are none."""

    name: str
    hosts: Sequence[Host]
    processes: "Sequence[Popen[bytes]]"
    lack: str | None

    def open(self, host: Host) -> "MemcachedCache | RedisCache":
        """A client, for one process. Raises RunFailed."""
        if self.lack is not None:
            raise RunFailed(self.lack)
        if self.name == NUTCRACKER:
            return MemcachedCache(_addresses([host], NUTCRACKER), is_text=True)
        servers = _addresses(self.hosts, self.name)
        return RedisCache(servers) if self.name == REDIS else MemcachedCache(servers)


@contextmanager
def running_fleet(name: str, hosts: Sequence[Host], memory_bytes: int) -> Iterator[Fleet]:
    """The servers of a rival until the end of the block. nutcracker needs running memcached servers."""
    missing = lack(_PROGRAMS[name], _PROGRAMS[name])
    with ExitStack() as stack:
        processes = []
        for host in hosts if missing is None else ():
            processes.append(host.start(_command(name, host, hosts, memory_bytes)))
            stack.callback(host.kill, processes[-1])
        for host, _ in zip(hosts, processes, strict=False):
            wait_for(partial(listens, host, _PORTS[name]), f"{name} listens on {host.name}")
        yield Fleet(name, hosts, processes, missing)


def _command(name: str, host: Host, hosts: Sequence[Host], memory_bytes: int) -> list[str]:
    port = str(_PORTS[name])
    if name == MEMCACHED:
        options = ["-u", "root", "-p", port, "-m", str(memory_bytes // MIB), "-t", str(_THREADS)]
        return ["memcached", "-l", host.address, *options]
    if name == REDIS:  # nothing on disk
        options = ["--port", port, "--save", "", "--maxmemory", str(memory_bytes), "--protected-mode", "no"]
        return ["redis-server", "--bind", host.address, *options]
    servers = "".join(f"\n    - {address}:1" for address in _addresses(hosts, MEMCACHED))
    settings = host.folder / "nutcracker.yml"
    settings.write_text(
        f"pool:\n  listen: {host.address}:{port}\n  hash: fnv1a_64\n  distribution: ketama\n"
        f"  preconnect: true\n  servers:{servers}\n"
    )
    return ["nutcracker", "-c", str(settings), "-a", host.address]


def _addresses(hosts: Sequence[Host], name: str) -> list[str]:
    return [f"{host.address}:{_PORTS[name]}" for host in hosts]


class MemcachedCache:
    """Ejects a lost server at the first failure; its keys move to the others."""

    def __init__(self, servers: Sequence[str], is_text: bool = False) -> None:
        """`is_text`: the slower protocol, the only one of nutcracker."""
        import pylibmc

        behaviors: dict[str, int] = {"tcp_nodelay": 1, "ketama": 1}
        if not is_text:
            behaviors |= {"remove_failed": 1, "dead_timeout": 600}
        self._client: Any = pylibmc.Client(list(servers), binary=not is_text, behaviors=behaviors)
        self._failure: type[Exception] = pylibmc.Error
        self.get: Callable[[str], bytes | None] = self._client.get

    def get_many(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """Nothing when a server was lost."""
        try:
            found: Mapping[str, bytes] = self._client.get_multi(paths)
        except self._failure:
            return {}
        return found

    def set_many(self, contents: Mapping[str, bytes]) -> None:
        """Retries while the client ejects a lost server."""
        left = list(contents)
        for _ in range(_TRIES_MAX):
            with suppress(self._failure):
                left = self._client.set_multi({path: contents[path] for path in left})
            if not left:
                return


class RedisCache:
    """Shards by a hash of the key; MGET to one server after the other."""

    def __init__(self, servers: Sequence[str]) -> None:
        import redis

        places = [server.split(":") for server in servers]
        self._clients: list[Any] = [redis.Redis(host, int(port)) for host, port in places]

    def get(self, path: str) -> bytes | None:
        content: bytes | None = self._clients[self._shard(path)].get(path)
        return content

    def get_many(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for client, shard in self._shards(paths):
            found.update(zip(shard, client.mget(shard), strict=True))
        return found

    def set_many(self, contents: Mapping[str, bytes]) -> None:
        for client, shard in self._shards(contents):
            client.mset({path: contents[path] for path in shard})

    def _shard(self, path: str) -> int:
        return crc32(path.encode()) % len(self._clients)

    def _shards(self, paths: Iterable[str]) -> Iterator[tuple[Any, list[str]]]:
        shards: dict[int, list[str]] = {}
        for path in paths:
            shards.setdefault(self._shard(path), []).append(path)
        return ((self._clients[number], shard) for number, shard in shards.items())
