"""The connections of a process to its servers: which server is called, and what happens when one fails. This module
opens sockets.

Thread-safe: each call takes its own connection from a pool. Fork-safe: a child never touches its parent's connections.
"""

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeVar

from dieselfs.errors import AccessDenied, Unavailable
from dieselfs.forks import renew_after_fork
from dieselfs.limits import (
    CONNECT_TIMEOUT_S,
    OTHER_CONNECT_TIMEOUT_S,
    READ_GONE_S,
    REQUEST_TIMEOUT_S,
    SERVER_GONE_S,
    SERVER_SILENCE_S,
)
from dieselfs.net.address import Address, Servers, UnixAddress, parse_servers
from dieselfs.process.embedded_server import connect_embedded, socket_path
from dieselfs.rpc.access import AccessFiles, warn_of_plain_tcp
from dieselfs.rpc.connection import Connection, connected
from dieselfs.rpc.endpoints import Tries, open_endpoints
from dieselfs.rpc.methods import READER, Method
from dieselfs.settings.table import OFF, Settings

EMBEDDED_TRIES_MAX = 3
EMBEDDED_PAUSE_S = 0.05
"""Before such a retry; clients are threads, so they may sleep."""

POOL_CONNECTIONS_MAX = 16
"""Limit of idle connections; if more threads call, more connections open, and close afterwards."""

_T = TypeVar("_T")


class ServerConnections:
    """A pool of connections to a server, or to several over the same stores."""

    def __init__(self, settings: Settings, start: int | None = None) -> None:
        """`start`: which of several servers is called first; None for a random one."""
        self.settings = settings
        self._embedded = UnixAddress(str(socket_path(settings.home)))
        self.address: Servers = parse_servers(settings.server) if settings.server else self._embedded
        self._access = AccessFiles(settings)
        if settings.server and settings.tls == OFF:
            warn_of_plain_tcp(self.address)
        self._lock = Lock()  # guards the two below
        self._endpoints = open_endpoints(self.address, settings.etcd, start)
        self._idle: list[Connection] = []
        self._is_closed = False
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The connections are in use by the parent; threads of it may have held the locks."""
        self._lock, self._idle = Lock(), []
        self._endpoints, self._access = self._endpoints.forked(), self._access.forked()

    def close(self) -> None:
        """Close the idle connections; calls in flight complete."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @property
    def servers_pin(self) -> bytes | None:
        """The pin of the servers in the key file; None without one, as on a Unix socket."""
        key = self._access.current().key
        return key.pin if key else None

    def trouble(self) -> str:
        """Why the servers cannot be reached now; empty if the last call succeeded. Does not wait."""
        return self._endpoints.trouble

    def failures(self) -> int:
        """How often a server failed this process: a connection or a call, which then went to another one."""
        return self._endpoints.failures

    def retries(self) -> int:
        """How often a call of this process was attempted again, there or at another server."""
        return self._endpoints.retries

    def _connect(self, tries: Tries) -> Connection:
        while True:
            server = tries.next()
            access = self._access.current()
            try:
                if self.settings.server is None:
                    return self._connect_embedded()
                timeout_s = OTHER_CONNECT_TIMEOUT_S if tries.has_other(server) else CONNECT_TIMEOUT_S
                sock = connected(server, access.tls, timeout_s)
                return Connection(sock, server, access.key, timeout_s)
            except Unavailable as error:
                tries.failed(server, error)
            except AccessDenied:
                if self._access.current(is_urgent=True) is access:
                    raise

    def _connect_embedded(self) -> Connection:
        """Retries: a server that exits may accept a connection and drop it; the retry starts another server."""
        for _ in range(EMBEDDED_TRIES_MAX - 1):
            try:
                return Connection(connect_embedded(self.settings.home), self._embedded, None)
            except Unavailable:
                time.sleep(EMBEDDED_PAUSE_S)
        return Connection(connect_embedded(self.settings.home), self._embedded, None)

    def _take(self, tries: Tries) -> tuple[Connection, bool]:
        """`(connection, whether it is a new one)`."""
        key = self._access.current().key
        with self._lock:
            while self._idle and not tries.has_failed:
                connection = self._idle.pop()
                if connection.is_idle and connection.key is key:
                    return connection, False
                connection.close()
        return self._connect(tries), True

    def _close_idle(self, server: Address) -> None:
        """A connection to `server` failed: its idle ones would fail too, each after its own timeout."""
        with self._lock:
            failed = [connection for connection in self._idle if connection.address == server]
            self._idle = [connection for connection in self._idle if connection.address != server]
        for connection in failed:
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if connection.is_open and not self._is_closed and len(self._idle) < POOL_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def servers(self) -> Sequence[Address]:
        """The servers that this client may use."""
        return self._endpoints.servers()

    def _with_connection(
        self,
        call: Callable[[Connection, float], _T],
        row: Method,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> _T:
        """What `call`, of the method `row`, returns for one of the servers. It gets a connection, and the timeout for
        bytes to move.

        If a reader waits for it, the timeouts of a silent server and of a lost machine are shorter while there is
        another server, and failed servers are tried again.
        """
        is_urgent = row.urgency == READER
        tries = self._endpoints.tries(is_patient=is_urgent)
        while True:
            connection, is_new = self._take(tries)
            try:
                is_impatient = is_urgent and tries.has_other(connection.address)
                connection.gone_s = READ_GONE_S if is_impatient else SERVER_GONE_S
                result = call(connection, SERVER_SILENCE_S if is_impatient else timeout_s)
                if self._endpoints.trouble:
                    self._endpoints.trouble = ""
                return result
            except Unavailable as error:
                if connection.is_open or not row.is_repeatable:
                    raise
                self._close_idle(connection.address)
                # An old connection may have failed because the server has restarted.
                tries.failed(connection.address, error, is_final=is_new)
            except AccessDenied:
                if self._access.current(is_urgent=True).key is connection.key:
                    raise
                connection.close()  # its key was replaced, and removed before this client had noticed
            finally:
                self._give_back(connection)
