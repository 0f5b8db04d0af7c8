"""The servers that a client may use, and their order. This module opens connections to etcd.

Servers are stateless over the same stores. Each new connection goes to the next server of the list; each process starts
at a random place, which spreads the load. A failed server is avoided for a while, as long as there is another.
"""

import random
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from threading import Lock, Thread

from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.etcd.client import Etcd, EtcdAccess
from dieselfs.etcd.helper import read_values
from dieselfs.etcd.keys import SERVERS_PREFIX, decode_servers
from dieselfs.limits import (
    ETCD_PATIENCE_S,
    FAILOVER_TIMEOUT_S,
    READ_PATIENCE_S,
    SERVER_AVOIDED_S,
    SERVERS_REFRESH_S,
)
from dieselfs.net.address import Address, EtcdAddress, ServerList, Servers

SERVER_RETRY_S = 0.25
"""Pause between two rounds over all servers."""
OVERTAKEN_MAX = 3
"""A server that others overtake this often in a row, without any answer of its own, is avoided as if it had failed."""

Clock = Callable[[], float]


class ServerDirectory:
    """The servers there are: a fixed list, or those in etcd's registry; a call with an old list reads them again.

    While etcd is slow, unavailable or empty, the last list stays in use: servers do not need etcd to serve.
    """

    def __init__(
        self,
        known: Sequence[Address] = (),
        read: Callable[[], Mapping[str, bytes]] | None = None,
        name: str = "",
        clock: Clock = time.monotonic,
        patience_s: float = ETCD_PATIENCE_S,
    ) -> None:
        """`read`: from the registry of etcd, which is called `name`; None: the list is fixed."""
        self._patience_s = patience_s
        self._read = read
        self._name = name
        self._clock = clock
        self._lock = (
            Lock()
        )  # guards changes of the two below; without a list, one thread reads etcd, the others wait
        self.known = known
        """The last known servers, without I/O."""
        self._read_s = clock() if known else float("-inf")

    def servers(self) -> Sequence[Address]:
        """At least one. Raises Unavailable, AccessDenied."""
        if self._read is None:
            return self.known
        with self._lock:
            if not self.known:
                self.known = decode_servers(self._read())
                if not self.known:
                    raise Unavailable(
                        f"no server is registered at {self._name}: start one with dieselfs-server --etcd"
                    )
                self._read_s = self._clock()
            is_old = self._clock() - self._read_s >= SERVERS_REFRESH_S
            if is_old:
                self._read_s = self._clock()  # the others use the last list meanwhile
        if is_old:
            thread = Thread(target=self._read_again, args=(self._read,), name="servers", daemon=True)
            with suppress(RuntimeError):  # no thread can be started
                thread.start()
                thread.join(self._patience_s)
        return self.known

    def _read_again(self, read: Callable[[], Mapping[str, bytes]]) -> None:
        with suppress(DieselfsError):
            self.known = decode_servers(read()) or self.known

    def forked(self) -> "ServerDirectory":
        """A copy for a forked child, with a lock that no thread of the parent holds."""
        return ServerDirectory(self.known, self._read, self._name, self._clock, self._patience_s)


class Endpoints:
    """Chooses servers for new connections. Safe between threads."""

    def __init__(
        self,
        source: ServerDirectory,
        start: int | None = None,
        clock: Clock = time.monotonic,
        patience_s: float = READ_PATIENCE_S,
    ) -> None:
        """`start`: the place in the list where this process starts; None for a random one. `patience_s`: how long
        patient calls are retried.
        """
        self._source = source
        self.clock = clock
        self._lock = Lock()  # guards the three below, and the numbers
        self._turn = random.SystemRandom().randrange(1 << 30) if start is None else start
        self._avoided_until_s: dict[Address, float] = {}
        self._overtaken: dict[Address, int] = {}  # how often, since the last answer
        self.trouble = ""
        """Why the last call to a server failed; empty after a call that succeeded."""
        self.failures = 0
        """Connections and calls of this process that a server failed."""
        self.patience_s = patience_s
        self.retries = 0
        """Further attempts of calls that a server had failed."""

    def forked(self) -> "Endpoints":
        """For a forked child: it starts at another place."""
        return Endpoints(self._source.forked(), None, self.clock, self.patience_s)

    def choose(self, tried: Container[Address]) -> Address | None:
        """The first server in the ring that was not tried and is not avoided; of avoided ones, the one whose time ends
        first; None if all have been tried. Raises as `ServerDirectory.servers`.
        """
        servers, avoided_until_s = self._source.servers(), self._avoided_until_s
        with self._lock:
            turn, self._turn = self._turn, self._turn + 1
            now_s = self.clock()
            ring = (servers[(turn + place) % len(servers)] for place in range(len(servers)))
            untried = (server for server in ring if server not in tried)
            return min(untried, key=lambda one: max(avoided_until_s.get(one, now_s), now_s), default=None)

    def has_other(self, server: Address, tried: Container[Address]) -> bool:
        """Whether another server is left for this call: not tried, and not avoided."""
        with self._lock:
            now_s = self.clock()
            return any(
                other != server and other not in tried and self._avoided_until_s.get(other, now_s) <= now_s
                for other in self._source.known
            )

    def servers(self) -> Sequence[Address]:
        """All servers. Raises as `ServerDirectory.servers`."""
        return self._source.servers()

    def avoid(self, server: Address) -> None:
        """Open no connections to `server` for a while, because it failed."""
        with self._lock:
            self.failures += 1
            self._overtaken.pop(server, None)
            self._avoided_until_s[server] = self.clock() + SERVER_AVOIDED_S

    def overtaken(self, server: Address) -> bool:
        """Another server answered a call of `server` first; whether that is avoided now."""
        with self._lock:
            times = self._overtaken[server] = self._overtaken.get(server, 0) + 1
        if times < OVERTAKEN_MAX:
            return False
        self.avoid(server)
        return True

    def answered(self, server: Address) -> None:
        """`server` has answered a call."""
        self.trouble = ""
        if self._overtaken:
            with self._lock:
                self._overtaken.pop(server, None)

    def count_retry(self) -> None:
        with self._lock:
            self.retries += 1

    def tries(self, is_patient: bool = False) -> "Tries":
        """The servers for a new call."""
        return Tries(self, is_patient)


_BROKEN = ConnectionResetError, ConnectionAbortedError, BrokenPipeError


def has_broken(error: BaseException | None) -> bool:
    """Whether a connection ended that the server had accepted: of a server with several processes, one may have died.
    One whose machine is silent, or that accepts none, has not.
    """
    while error is not None:
        if isinstance(error, _BROKEN):
            return True
        error = error.__cause__
    return False


class Tries:
    """The servers that one call has tried, with their errors: each once, or twice if the connection broke.

    A patient call retries all servers when none is left, until its time ends.
    """

    def __init__(
        self, endpoints: Endpoints, is_patient: bool = False, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._endpoints = endpoints
        self._clock = endpoints.clock
        self._is_patient = is_patient
        self._pause = pause
        self._deadline_s = self._clock() + (endpoints.patience_s if is_patient else FAILOVER_TIMEOUT_S)
        self._failed: dict[Address, Unavailable] = {}  # in order
        self._broken: set[Address] = set()  # whose connection broke once
        self.has_failed = False

    def next(self) -> Address:
        """The server to try now. Raises Unavailable, from the last failure, when no server or no time is left."""
        while not self._failed or self._clock() < self._deadline_s:
            server = self._endpoints.choose(self._failed)
            if server is not None:
                if self.has_failed:
                    self._endpoints.count_retry()
                return server
            if not self._is_patient:
                break
            self._pause(SERVER_RETRY_S)
            self._failed.clear()
        *others, last = self._failed.values()
        if not others:
            raise last
        raise Unavailable(f"none of {len(self._failed)} servers answers; the last one: {last}") from last

    def has_other(self, server: Address) -> bool:
        """Whether another server is left for this call."""
        return self._endpoints.has_other(server, self._failed)

    def other(self, server: Address) -> Address | None:
        """Another server for this call, None if there is none."""
        return self._endpoints.choose((*self._failed, server))

    def failed(self, server: Address, error: Unavailable, is_final: bool = True) -> None:
        """Note that `server` failed; unless it is final, this call may retry it. The first connection that breaks never
        is.
        """
        self.has_failed = True
        self._endpoints.trouble = str(error)
        if is_final and server not in self._broken and has_broken(error):
            self._broken.add(server)
        elif is_final:
            self._failed[server] = error
        self._endpoints.avoid(server)


def open_endpoints(
    servers: Servers, access: EtcdAccess, start: int | None = None, patience_s: float = READ_PATIENCE_S
) -> Endpoints:
    """Raises InvalidInput if etcd is configured and its package is not installed."""
    if isinstance(servers, EtcdAddress):
        etcd = Etcd(servers, access)
        source = ServerDirectory((), lambda: read_values(etcd, SERVERS_PREFIX), str(servers))
    else:
        source = ServerDirectory(servers.servers if isinstance(servers, ServerList) else [servers])
    return Endpoints(source, start, patience_s=patience_s)
