"""The connections of a process to its servers: which server is called, and what happens when one fails. This module
opens sockets.

Thread-safe: each call takes its own connection from a pool. Fork-safe: a child never touches its parent's connections.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
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
    VERB_PATIENCE_S,
    VERB_SILENCE_S,
)
from dieselfs.net.address import Address, Servers, UnixAddress, parse_servers
from dieselfs.process.embedded_server import connect_embedded, socket_path
from dieselfs.rpc.access import Access, AccessFiles, warn_of_plain_tcp
from dieselfs.rpc.connection import Connection, connected, first_to_answer
from dieselfs.rpc.endpoints import Tries, open_endpoints
from dieselfs.rpc.hedging import Hedging, kind_of
from dieselfs.rpc.login import Renewal
from dieselfs.rpc.methods import READER, Method
from dieselfs.rpc.payload_files import OpenedFiles
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
        self._renewal = Renewal(settings)
        if settings.server and settings.tls == OFF:
            warn_of_plain_tcp(self.address)
        self._lock = Lock()  # guards the two below
        self._endpoints = open_endpoints(self.address, settings.etcd, start, settings.patience_s)
        self._idle: list[Connection] = []
        self._hedging = Hedging()
        self._opened = OpenedFiles()  # by chunk ID
        self.drops_pages = False
        """Whether files of an own server leave the page cache, once their payloads are read whole."""
        self._is_closed = False
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The connections are in use by the parent; threads of it may have held the locks."""
        self._lock, self._idle, self._hedging = Lock(), [], Hedging()
        self._endpoints, self._access = self._endpoints.forked(), self._access.forked()
        self._renewal.after_fork()

    def be_patient_for(self, patience_s: float) -> None:
        """From now on instead of `settings.patience_s`."""
        self._endpoints.patience_s = patience_s

    def close(self) -> None:
        """Close the idle connections, and files that were opened ahead; calls in flight complete."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._opened.close()

    @property
    def servers_pins(self) -> tuple[bytes, ...]:
        """The pins of the servers in the key file: two while their identity is replaced, none on a Unix socket."""
        key = self._access.current().key
        return key.pins if key else ()

    def trouble(self) -> str:
        """Why the servers cannot be reached now; empty if the last call succeeded. Does not wait."""
        return self._endpoints.trouble

    def failures(self) -> int:
        """How often a server failed this process: a connection or a call, which then went to another one."""
        return self._endpoints.failures

    def retries(self) -> int:
        """How often a call of this process was attempted again, there or at another server."""
        return self._endpoints.retries

    def hedges_sent(self) -> int:
        """How many reads were sent to a second server, because the first one was slow."""
        return self._hedging.sent

    def hedges_won(self) -> int:
        """How many of these the second server answered first."""
        return self._hedging.won

    def _current(self) -> Access:
        """The access in force. Raises AccessDenied for a login that has ended."""
        return self._access.current(is_urgent=self._renewal.keep())

    def _connect(self, tries: Tries) -> Connection:
        while True:
            server = tries.next()
            access = self._current()
            try:
                if self.settings.server is None:
                    return self._connect_embedded()
                return self._connect_to(server, tries, access)
            except Unavailable as error:
                tries.failed(server, error)
            except AccessDenied:
                if self._access.current(is_urgent=True) is access:
                    raise

    def _connect_to(self, server: Address, tries: Tries, access: Access) -> Connection:
        patience_s = min(CONNECT_TIMEOUT_S, self._endpoints.patience_s)
        timeout_s = OTHER_CONNECT_TIMEOUT_S if tries.has_other(server) else patience_s
        return Connection(connected(server, access.tls, timeout_s), server, access.key, timeout_s)

    def _is_alive(self, server: Address) -> bool:
        """Whether a server that is silent takes a new connection."""
        access, timeout_s = self._access.current(), 2 * VERB_SILENCE_S
        try:
            Connection(connected(server, access.tls, timeout_s), server, access.key, timeout_s).close()
        except Unavailable as error:  # one that refuses it has answered
            return not isinstance(error.__cause__, TimeoutError)
        except AccessDenied:
            return True
        return True

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
        connection = None if tries.has_failed else self._idle_connection()
        return (self._connect(tries), True) if connection is None else (connection, False)

    def _idle_connection(self) -> Connection | None:
        key = self._current().key
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_idle and connection.key is key:
                    return connection
                connection.close()
        return None

    def _close_idle(self, server: Address) -> None:
        """A connection to `server` failed: its idle ones would fail too, each after its own timeout."""
        with self._lock:
            failed = [connection for connection in self._idle if connection.address == server]
            self._idle = [connection for connection in self._idle if connection.address != server]
        for connection in failed:
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        is_usable = connection.is_open and not connection.is_asked
        with self._lock:
            if is_usable and not self._is_closed and len(self._idle) < POOL_CONNECTIONS_MAX:
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
        ask: Callable[[Connection, float], None] | None = None,
        length_bytes: int = 0,
    ) -> _T:
        """What `call`, of the method `row`, returns for one of the servers. It gets a connection, and the timeout for
        bytes to move.

        If a reader waits for it, the timeouts of a silent server and of a lost machine are shorter while there is
        another server, and failed servers are tried again. If `ask` sends the call, whose reply has about
        `length_bytes`, and the reply takes longer than usual, it is sent to another server too; `call` then receives
        the first one. The other connection is closed.
        """
        is_urgent = row.urgency == READER
        tries = self._endpoints.tries(is_patient=is_urgent)
        second: Connection | None = None  # it has sent the call as well
        try:
            while True:
                if second is not None:
                    connection, is_new, second = second, True, None
                else:
                    connection, is_new = self._take(tries)
                try:
                    is_impatient = is_urgent and tries.has_other(connection.address)
                    connection.gone_s = READ_GONE_S if is_impatient else SERVER_GONE_S
                    if self._endpoints.patience_s <= VERB_PATIENCE_S:  # somebody waits for dlcmd
                        connection.is_alive = partial(self._is_alive, connection.address)
                    if ask is not None and is_impatient and not connection.is_asked:
                        kind = kind_of(row.name, length_bytes)
                        connection, second = self._raced(connection, ask, tries, kind)
                    result = call(connection, SERVER_SILENCE_S if is_impatient else timeout_s)
                    self._endpoints.answered(connection.address)
                    return result
                except Unavailable as error:
                    if connection.is_open or not row.is_repeatable:
                        raise
                    self._close_idle(connection.address)
                    # An old connection may have broken because the server has restarted. Silence, or a refusal, says
                    # more about the server.
                    cause = error.__cause__
                    is_final = is_new or not isinstance(cause, OSError) or isinstance(cause, TimeoutError)
                    tries.failed(connection.address, error, is_final)
                except AccessDenied:
                    if self._access.current(is_urgent=True).key is connection.key:
                        raise
                    connection.close()  # its key was replaced, and removed before this client had noticed
                finally:
                    self._give_back(connection)
        finally:
            if second is not None:
                second.close()

    def _raced(
        self, first: Connection, ask: Callable[[Connection, float], None], tries: Tries, kind: Hashable
    ) -> tuple[Connection, Connection | None]:
        """Send a call, and if no reply begins in time, to another server too. Returns the connection whose reply has
        begun, and the other one, which may still answer. Raises Unavailable, with `first` closed, if none answers.
        """
        began_s = time.monotonic()
        ask(first, SERVER_SILENCE_S)
        if not first.is_asked:  # its reply is a file
            return first, None
        if first_to_answer([first], self._hedging.after_s(kind)) is not None:
            self._hedging.answered(kind, time.monotonic() - began_s)
            return first, None
        first.watch()
        second = self._second(first, ask, tries) if self._hedging.may_send() else None
        try:
            both = [first, second] if second else [first]
            place = first_to_answer(both, SERVER_SILENCE_S)
            if place is None:
                if second is not None:
                    tries.failed(second.address, second.gave_up())
                raise first.gave_up()
        except BaseException:
            if second is not None:
                second.close()
            raise
        self._hedging.answered(kind, time.monotonic() - began_s, is_second=place > 0)
        if place and self._endpoints.overtaken(first.address):
            self._close_idle(first.address)
        return both.pop(place), both[0] if both else None

    def _second(
        self, first: Connection, ask: Callable[[Connection, float], None], tries: Tries
    ) -> Connection | None:
        """A connection to another server than that of `first`, which has sent the call too; None if there is none."""
        with self._lock:
            others = [each for each in self._idle if each.address != first.address and each.key is first.key]
            if others:
                self._idle.remove(others[-1])
        second = others[-1] if others else None
        try:
            if second is not None and not second.is_idle:
                second.close()
                second = None
            if second is None:
                server = tries.other(first.address)
                if server is None:
                    return None
                second = self._connect_to(server, tries, self._access.current())
            second.gone_s = READ_GONE_S
            ask(second, SERVER_SILENCE_S)
            second.watch()
        except (AccessDenied, Unavailable):  # the next call finds out more
            return None
        if second.is_asked:
            return second
        self._give_back(second)
        return None
