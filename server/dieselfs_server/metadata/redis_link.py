"""The link to Redis, one server or a cluster: carries calls to the node that each is for, in one batch per node.

Every wait is bounded, every error of Redis leaves here as one of ours. A call whose answer was lost may have been
carried out; it is sent again all the same, so only calls that can be repeated may be made. All that is shared between
threads stands under `_lock`, except pools of connections, which look after themselves.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol

from redis import BlockingConnectionPool, ConnectionPool, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.retry import Retry

from dieselfs.errors import DieselfsError, StorageFull, Unavailable
from dieselfs.limits import (
    REDIS_CONNECT_TIMEOUT_S,
    REDIS_CONNECTIONS_MAX,
    REDIS_PATIENCE_S,
    REDIS_REQUEST_TIMEOUT_S,
    REDIS_RETRY_S,
)
from dieselfs_server.metadata.redis_cells import Call, Request, Result
from dieselfs_server.metadata.redis_scripts import Script
from dieselfs_server.metadata.redis_url import RedisLocation

SLOTS = 16384
_LOST = (ConnectionError, TimeoutError)
_PASSING = (MovedError, AskError, ClusterDownError, TryAgainError, BusyLoadingError, ReadOnlyError)
"""Answers that mean: another node, or a little later."""
_REFUSED = (AuthenticationError, AuthorizationError)  # redis counts them among lost connections

log = logging.getLogger(__name__)

_Node = tuple[str, int]
_Calls = list[tuple[int, Call]]
"""Calls with their places in what was asked."""
_Answer = tuple[int, Call, Any]


class Link(Protocol):
    def ask(self, calls: Sequence[Call]) -> list[Any]:
        """The replies, in order. Raises Unavailable, StorageFull; some of the calls may then have been carried out."""
        ...

    def close(self) -> None: ...


def ask(link: Link, requests: Sequence[Request[Result]]) -> list[Result]:
    """What each request gets. Raises what `Link.ask` does."""
    replies = link.ask([request.call() for request in requests])
    return [request.result(reply) for request, reply in zip(requests, replies, strict=True)]


class RedisLink:
    """Raises Unavailable at once if nothing answers there; later it waits `patience_s` for what is away."""

    def __init__(self, location: RedisLocation, patience_s: float = REDIS_PATIENCE_S) -> None:
        self._location = location
        self._patience_s = 0.0
        self._lock = Lock()  # guards the three below
        self._pools: dict[_Node, ConnectionPool] = {}
        self._node_of_slot: list[_Node] = []
        self._is_closed = False
        if location.is_open:
            log.warning(
                "metadata: Redis at %s wants no password and can be reached over the network: whoever reaches it "
                "can read, change and delete all metadata; docs/metadata-keys.md shows the settings",
                location,
            )
        self.ask([Call(b"", (b"PING",))])
        self._patience_s = patience_s

    def ask(self, calls: Sequence[Call]) -> list[Any]:
        replies: list[Any] = [None] * len(calls)
        left = list(enumerate(calls))
        deadline_s = time.monotonic() + self._patience_s
        while left:
            left, trouble = self._try(left, replies)
            if left and trouble:
                if time.monotonic() + REDIS_RETRY_S > deadline_s:
                    raise Unavailable(f"metadata in Redis at {self._location}: {trouble}; try again later")
                time.sleep(REDIS_RETRY_S)
                self._forget_slots()
        return replies

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
            self._pools = {}
        for pool in pools:
            pool.disconnect()

    def _try(self, calls: _Calls, replies: list[Any]) -> tuple[_Calls, str]:
        """Fill in replies; returns the calls that must be made again, and why (empty: at once)."""
        by_node: defaultdict[_Node, _Calls] = defaultdict(list)
        try:
            for place, call in calls:
                by_node[self._node_for(call.key)].append((place, call))
        except _LOST as error:
            return calls, _describe(error)
        again: _Calls = []
        trouble = ""
        waiting = [self._send(node, part) for node, part in by_node.items()]
        for answers in [
            answer() for answer in waiting
        ]:  # all are read, so that every connection is free again
            for place, call, reply in answers:
                if isinstance(reply, NoScriptError) and call.script is not None:
                    again.append((place, call))
                elif isinstance(reply, _REFUSED):
                    raise self._translate(reply)
                elif isinstance(reply, (*_LOST, *_PASSING)):
                    again.append((place, call))
                    trouble = _describe(reply)
                elif isinstance(reply, RedisError):
                    raise self._translate(reply)
                else:
                    replies[place] = reply
        return again, trouble

    def _send(self, node: _Node, calls: _Calls) -> Callable[[], Iterator[_Answer]]:
        """Send calls to a node; what is returned waits for the answers. So nodes work at the same time."""
        try:
            pool = self._pool(node)
            connection = pool.get_connection()
        except _LOST as lost:
            error = lost  # the name of an except clause ends with it
            return lambda: ((place, call, error) for place, call in calls)
        try:
            connection.send_packed_command(connection.pack_commands([call.arguments for _, call in calls]))
        except _LOST as lost:
            sending_error = lost
            connection.disconnect()
            pool.release(connection)
            return lambda: ((place, call, sending_error) for place, call in calls)
        except BaseException:
            connection.disconnect()
            pool.release(connection)
            raise

        def answers() -> Iterator[_Answer]:
            found = []
            with _returned(pool, connection):
                lost: RedisError | None = None
                for place, call in calls:
                    found.append((place, call, lost or _read(connection)))
                    if isinstance(found[-1][2], _LOST):
                        lost = found[-1][2]
                if lost is None:
                    found = _load_scripts(connection, found)
            return iter(found)

        return answers

    def _pool(self, node: _Node) -> ConnectionPool:
        with self._lock:
            if self._is_closed:
                raise Unavailable(f"metadata in Redis at {self._location}: the store is closed")
            if node not in self._pools:
                self._pools[node] = self._new_pool(node)
            return self._pools[node]

    def _new_pool(self, node: _Node) -> ConnectionPool:
        where: dict[str, Any] = {"host": node[0], "port": node[1]}
        if self._location.socket_path is not None:
            where = {"connection_class": UnixDomainSocketConnection, "path": self._location.socket_path}
        return BlockingConnectionPool(
            max_connections=REDIS_CONNECTIONS_MAX,
            timeout=REDIS_REQUEST_TIMEOUT_S,
            db=self._location.database,
            username=self._location.user,
            password=self._location.password,
            socket_connect_timeout=REDIS_CONNECT_TIMEOUT_S,
            socket_timeout=REDIS_REQUEST_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # `ask` tries again, and knows when to end
            protocol=2,
            **where,
        )

    def _node_for(self, key: bytes) -> _Node:
        if not self._location.is_cluster:
            return self._location.nodes[0] if self._location.nodes else ("", 0)
        with self._lock:
            nodes = self._node_of_slot
        if not nodes:
            nodes = self._read_slots()
            with self._lock:
                self._node_of_slot = nodes
        return nodes[key_slot(key)]

    def _forget_slots(self) -> None:
        with self._lock:
            self._node_of_slot = []

    def _read_slots(self) -> list[_Node]:
        """Which node has which slot. Raises a ConnectionError of redis if no node can tell."""
        with self._lock:
            known = list(dict.fromkeys([*self._location.nodes, *self._pools]))
        trouble: RedisError = ConnectionError("no node of the cluster answers")
        for node in known:
            ((_, _, reply),) = self._send(node, [(0, Call(b"", (b"CLUSTER", b"SLOTS")))])()
            if isinstance(reply, (*_REFUSED, NoPermissionError)):
                raise self._translate(reply)
            if isinstance(reply, RedisError):
                trouble = reply
                continue
            nodes: list[_Node] = [("", 0)] * SLOTS
            for first, last, master, *_ in reply:
                host = master[0].decode() or node[0]  # empty: the host that was asked
                nodes[first : last + 1] = [(host, master[1])] * (last + 1 - first)
            if ("", 0) not in nodes:
                return nodes
            trouble = ConnectionError(f"{node[0]}:{node[1]} knows no node for some slots")
        raise ConnectionError(_describe(trouble))

    def _translate(self, error: RedisError) -> DieselfsError:
        where = f"metadata in Redis at {self._location}"
        if isinstance(error, OutOfMemoryError) or str(error).startswith("OOM"):
            return StorageFull(
                f"{where}: it has used all the memory it may (maxmemory); raise that, and try again"
            )
        if isinstance(error, _REFUSED):
            return Unavailable(
                f"{where}: it refuses our user or password; see ?password_file=FILE in the URL"
            )
        if isinstance(error, NoPermissionError):
            return Unavailable(
                f"{where}: our user may not do what we need; see the ACL line in docs/metadata-keys.md"
            )
        return Unavailable(f"{where}: {_describe(error)}")


@contextmanager
def _returned(pool: ConnectionPool, connection: Any) -> Iterator[None]:
    """Give the connection back; one on which an answer is still to come is cut."""
    try:
        yield
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _read(connection: Any) -> Any:
    """The next reply; errors are returned, not raised."""
    try:
        return connection.read_response()
    except _LOST as error:
        connection.disconnect()
        return error
    except ResponseError as error:
        return error


def _load_scripts(connection: Any, found: Sequence[_Answer]) -> list[_Answer]:
    """Teach a server that has just started, or was emptied, the scripts that it did not know.

    Returns the answers; the error takes the place of the answer where that did not work.
    """
    unknown = {call.script for _, call, reply in found if isinstance(reply, NoScriptError)} - {None}
    errors: dict[Script | None, Any] = {}
    for script in unknown:
        if script is not None:
            try:
                connection.send_command(b"SCRIPT", b"LOAD", script.text)
                reply = _read(connection)
            except _LOST as error:
                reply = error
            if isinstance(reply, RedisError):
                errors[script] = reply
    return [
        (place, call, errors.get(call.script, reply) if isinstance(reply, NoScriptError) else reply)
        for place, call, reply in found
    ]


def _describe(error: RedisError) -> str:
    return str(error).rstrip(".") or type(error).__name__
