"""Connections to Redis, one server or a cluster: sends calls in one batch for each node.

Every wait is bounded, and every error of Redis becomes a DieselfsError. A call is sent again if its reply was lost,
although Redis may have executed it: all calls must be idempotent. `_lock` guards all shared state except the connection
pools, which are thread-safe.

Every new connection asks the node for its `run_id`, which changes with each start of Redis: a node that has restarted,
or another node in its place, may lack its newest writes. `lineage` counts these changes.

Locations are parsed from URLs; this module opens the password file:

    redis://[USER@]HOST[:PORT][/DATABASE][?password_file=FILE&prefix=TEXT]
    redis+unix:///PATH/OF/SOCKET[?...]
    redis+cluster://[USER@]HOST:PORT,HOST:PORT,...[?...]
    rediss://...[?ca_file=FILE&certificate_file=FILE&key_file=FILE&...], rediss+cluster://...     TLS

The certificate of Redis must name the host. Its authority is in `ca_file`, or one that the system trusts. Redis gets
`certificate_file`, with `key_file`, if it wants a certificate. A password is never in the URL, because every user of a
machine can see command lines.
"""

import logging
import os
import re
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, unquote

from redis import (
    BlockingConnectionPool,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
    exceptions,
)
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import NoPermissionError, NoScriptError, OutOfMemoryError, RedisError, ResponseError
from redis.retry import Retry

from dieselfs.errors import DieselfsError, InvalidInput, StorageFull, Unavailable
from dieselfs.limits import REDIS_AWAY_S, REDIS_PATIENCE_S, REDIS_REQUEST_TIMEOUT_S, REDIS_RETRY_S
from dieselfs.net.address import TcpAddress, split
from dieselfs.net.private_file import read_private_text
from dieselfs.net.sockets import open_socket
from dieselfs_server.metadata.redis.fields import Command, Script
from dieselfs_server.metadata.redis.persistence import run_id
from dieselfs_server.metadata.redis.values import DEFAULT_PREFIX

SCHEMES = ("redis", "redis+cluster", "redis+unix", "rediss", "rediss+cluster")
DEFAULT_PORT = 6379
PASSWORD_BYTES_MAX = 4096

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class RedisTls:
    """Files of PEM certificates and their key; None: the authorities of the system, and no own certificate."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class RedisLocation:
    """`nodes` are (host, port) of the server, or of some nodes of the cluster; empty with a `socket_path`."""

    nodes: Sequence[tuple[str, int]]
    is_cluster: bool = False
    database: int = 0
    user: str | None = None
    password: str | None = None
    prefix: bytes = DEFAULT_PREFIX
    socket_path: str | None = None
    tls: RedisTls | None = None

    def __repr__(self) -> str:
        return f"RedisLocation({self})"

    def __str__(self) -> str:
        """Without the password."""
        return self.socket_path or ",".join(f"{host}:{port}" for host, port in self.nodes)

    def danger(self) -> str:
        """What others can do, on the network or on this machine; empty if nothing. Modes protect a Unix socket."""
        if not self.nodes:
            return ""
        is_local = all(_is_loopback(host) for host, _ in self.nodes)
        if self.password is None:
            who = "user of this machine" if is_local else "host that can connect"
            return f"has no password: every {who} can read, change and delete all metadata"
        if self.tls is None and not is_local:
            return "is used without TLS: hosts on the way can read the password, and read and change all metadata"
        return ""


def parse_redis_url(url: str) -> RedisLocation:
    """Raises InvalidInput, also if the password file cannot be read or is readable by other users."""
    parts = split(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if ":" in user:
        raise InvalidInput("metadata: a password in the URL is visible to all users; use ?password_file=FILE")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    password_file = query.pop("password_file", None)
    prefix = query.pop("prefix", DEFAULT_PREFIX.decode())
    has_tls = parts.scheme.startswith("rediss")
    files = {name: query.pop(name, None) for name in RedisTls.__slots__} if has_tls else {}
    if query:
        known = ", ".join(["password_file", "prefix", *files])
        raise InvalidInput(f"metadata {url!r}: unknown option {min(query)!r}; use one of {known}")
    if bool(files.get("certificate_file")) != bool(files.get("key_file")):
        raise InvalidInput(f"metadata {url!r}: a certificate needs both certificate_file and key_file")
    for file in filter(None, files.values()):
        if not os.access(file, os.R_OK):
            raise InvalidInput(f"metadata {url!r}: cannot read {file}")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"metadata {url!r}: invalid prefix; use up to 64 of the characters A-Z a-z 0-9 . _ : -"
        )
    is_socket = parts.scheme == "redis+unix"
    return RedisLocation(
        nodes=[] if is_socket else [_node(host, url) for host in hosts.split(",")],
        is_cluster=parts.scheme.endswith("+cluster"),
        database=0 if is_socket else _database(parts.path, parts.scheme, url),
        user=unquote(user) if at and user else None,
        password=read_private_text(password_file, PASSWORD_BYTES_MAX, "password file")
        if password_file
        else None,
        prefix=prefix.encode(),
        socket_path=unquote(parts.path) if is_socket else None,
        tls=RedisTls(**files) if has_tls else None,
    )


def _node(text: str, url: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]/]+))(?::(\d{1,5}))?", text)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise InvalidInput(f"metadata {url!r}: {text!r} is not HOST:PORT")
    return match[1] or match[2], port


def _database(path: str, scheme: str, url: str) -> int:
    number = path.strip("/")
    if number and scheme.endswith("+cluster"):
        raise InvalidInput(f"metadata {url!r}: a cluster has no databases; use ?prefix=TEXT")
    if number and not re.fullmatch(r"\d{1,5}", number):
        raise InvalidInput(f"metadata {url!r}: {number!r} is not a database number")
    return int(number or 0)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


REDIS_CONNECT_TIMEOUT_S = 2.0
REDIS_CONNECTIONS_MAX = 32
"""To each node, from each server process."""

SLOTS = 16384
_LOST = (exceptions.ConnectionError, exceptions.TimeoutError)
_TRANSIENT = (
    *(exceptions.MovedError, exceptions.AskError, exceptions.ClusterDownError, exceptions.TryAgainError),
    *(exceptions.BusyLoadingError, exceptions.ReadOnlyError),
)
"""Errors after which a retry, perhaps at another node, can succeed."""
_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)  # subclasses of ConnectionError

log = logging.getLogger(__name__)

_Node = tuple[str, int]
_Calls = list[tuple[int, Command[Any]]]
"""Calls with their positions in the request."""
_Answer = tuple[int, Command[Any], Any]


class _TcpConnection(Connection):
    """Looks up the host within the timeout too: redis-py waits for name servers without a bound."""

    def _connect(self) -> socket.socket:
        try:
            sock = open_socket(TcpAddress(self.host, self.port), REDIS_CONNECT_TIMEOUT_S)
        except Unavailable as error:
            raise exceptions.ConnectionError(str(error)) from None
        sock.settimeout(self.socket_timeout)
        return sock


class _TlsConnection(SSLConnection, _TcpConnection):
    """TLS over such a connection."""


class RedisClient:
    """Opening raises Unavailable at once if Redis does not answer. Later calls retry for `patience_s` from the start of
    an outage; when it lasts longer, each call retries for REDIS_AWAY_S. A single server that is silent for
    REDIS_REQUEST_TIMEOUT_S hangs, and nothing replaces it: such a call is not retried. Until one succeeds, others wait
    REDIS_AWAY_S for a connection.
    """

    def __init__(self, location: RedisLocation, patience_s: float = REDIS_PATIENCE_S) -> None:
        self._location = location
        self._patience_s = 0.0
        self._away_since_s: float | None = None  # a call that succeeds ends the outage
        self._lock = Lock()  # guards the six below
        self._pools: dict[_Node, ConnectionPool] = {}
        self._node_of_slot: list[_Node] = []
        self._last_slots: list[_Node] = []  # as `_node_of_slot`, which is emptied to be read again
        self._runs: dict[_Node, bytes] = {}
        self._lineage = 0
        self._is_closed = False
        if danger := location.danger():
            log.warning(
                "metadata: Redis at %s %s; docs/reference/metadata-keys.md has the settings", location, danger
            )
        self.execute([Command(b"", (b"PING",))])
        self._patience_s = patience_s

    def execute(self, calls: Sequence[Command[Any]]) -> list[Any]:
        replies: list[Any] = [None] * len(calls)
        left = list(enumerate(calls))
        began_s = time.monotonic()
        while left:
            left, trouble = self._try(left, replies)
            if left and trouble is not None:
                if self._away_since_s is None:
                    self._away_since_s = began_s
                hangs = isinstance(trouble, exceptions.TimeoutError) and not self._location.is_cluster
                waited_s = time.monotonic() + REDIS_RETRY_S
                if hangs or waited_s > max(
                    self._away_since_s + self._patience_s, began_s + min(self._patience_s, REDIS_AWAY_S)
                ):
                    where = f"metadata in Redis at {self._location}"
                    raise Unavailable(f"{where}: {_describe(trouble)}; try again later")
                time.sleep(REDIS_RETRY_S)
                with self._lock:
                    self._node_of_slot = []
        self._away_since_s = None
        return replies

    def ask_nodes(self, *command: bytes) -> dict[str, Any]:
        if self._location.is_cluster:
            try:
                nodes = sorted(set(self._read_slots()))
            except _LOST as error:
                raise self._translate(error) from None
        else:
            nodes = [self._node_for(b"")]
        found = {}
        for node in nodes:
            ((_, _, reply),) = self._send(node, [(0, Command(b"", command))])()
            if isinstance(reply, RedisError) and not isinstance(reply, NoPermissionError):
                raise self._translate(reply)
            found[f"{node[0]}:{node[1]}" if node[0] else str(self._location)] = (
                None if isinstance(reply, NoPermissionError) else reply
            )
        return found

    def lineage(self) -> int:
        with self._lock:
            return self._lineage

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
            self._pools = {}
        for pool in pools:
            pool.disconnect()

    def _try(self, calls: _Calls, replies: list[Any]) -> tuple[_Calls, RedisError | None]:
        """Fill in replies; returns the calls to retry, and the error (None: retry at once)."""
        by_node: defaultdict[_Node, _Calls] = defaultdict(list)
        try:
            for place, call in calls:
                by_node[self._node_for(call.key)].append((place, call))
        except _LOST as error:
            return calls, error
        again: _Calls = []
        trouble: RedisError | None = None
        waiting = [self._send(node, batch) for node, batch in by_node.items()]
        for answers in [read() for read in waiting]:  # read all of them first, to free every connection
            for place, call, reply in answers:
                if isinstance(reply, NoScriptError) and call.script is not None:
                    again.append((place, call))
                elif isinstance(reply, _REFUSED):
                    raise self._translate(reply)
                elif isinstance(reply, (*_LOST, *_TRANSIENT)):
                    again.append((place, call))
                    trouble = reply
                elif isinstance(reply, RedisError):
                    raise self._translate(reply)
                else:
                    replies[place] = reply
        return again, trouble

    def _send(self, node: _Node, calls: _Calls) -> Callable[[], Iterator[_Answer]]:
        """Send calls to a node; the returned function waits for the replies. So the nodes work in parallel."""
        pool = self._pool(node)
        connection = None
        try:
            connection = pool.get_connection()
            if any(call.lineage not in (None, self.lineage()) for _, call in calls):
                raise Unavailable(f"metadata in Redis at {self._location}: it was restarted; try again")
            connection.send_packed_command(connection.pack_commands([call.arguments for _, call in calls]))
        except BaseException as error:
            if connection is not None:
                connection.disconnect()
                pool.release(connection)
            if not isinstance(error, _LOST):
                raise
            failure = error  # Python deletes the name of an except clause
            return lambda: ((place, call, failure) for place, call in calls)

        def answers() -> Iterator[_Answer]:
            found = []
            lost: RedisError | None = None
            try:
                for place, call in calls:
                    found.append((place, call, lost or _read(connection)))
                    if isinstance(found[-1][2], _LOST):
                        lost = found[-1][2]
                if lost is None:
                    found = _load_scripts(connection, found)
            except BaseException:
                connection.disconnect()  # replies may be unread
                raise
            finally:
                pool.release(connection)
            if isinstance(lost, exceptions.TimeoutError):  # each other one would wait as long
                pool.disconnect(inuse_connections=False)
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
        where: dict[str, Any] = {"connection_class": _TcpConnection, "host": node[0], "port": node[1]}
        if self._location.socket_path is not None:
            where = {"connection_class": UnixDomainSocketConnection, "path": self._location.socket_path}
        elif (tls := self._location.tls) is not None:
            where |= {
                "connection_class": _TlsConnection,
                "ssl_cert_reqs": "required",
                "ssl_check_hostname": True,
                "ssl_min_version": ssl.TLSVersion.TLSv1_2,
                "ssl_ca_certs": tls.ca_file,
                "ssl_certfile": tls.certificate_file,
                "ssl_keyfile": tls.key_file,
            }
        return BlockingConnectionPool(
            max_connections=REDIS_CONNECTIONS_MAX,
            timeout=REDIS_REQUEST_TIMEOUT_S,
            db=self._location.database,
            username=self._location.user,
            password=self._location.password,
            socket_connect_timeout=REDIS_CONNECT_TIMEOUT_S,
            socket_timeout=REDIS_REQUEST_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # `execute` retries, until its deadline
            protocol=2,
            redis_connect_func=partial(self._greet, node),
            **where,
        )

    def _greet(self, node: _Node, connection: Any) -> None:
        """Log in, and compare the node's `run_id` with that of earlier connections. Raises redis' errors, within
        REDIS_CONNECT_TIMEOUT_S for each answer, REDIS_AWAY_S in an outage.
        """
        is_away = self._away_since_s is not None
        connection._sock.settimeout(REDIS_AWAY_S if is_away else REDIS_CONNECT_TIMEOUT_S)
        connection.on_connect()
        connection.send_command(b"INFO", b"server")
        try:
            run = run_id(connection.read_response())
        except NoPermissionError:  # `condition` warns
            run = None
        connection._sock.settimeout(REDIS_REQUEST_TIMEOUT_S)
        if run is None:
            return
        with self._lock:
            known = self._runs.get(node, run)
            self._runs[node] = run
            self._lineage += known != run
        if known != run:
            log.warning("metadata: Redis at %s:%s has restarted: it may lack its newest writes", *node)

    def _node_for(self, key: bytes) -> _Node:
        if not self._location.is_cluster:
            return self._location.nodes[0] if self._location.nodes else ("", 0)
        with self._lock:
            nodes = self._node_of_slot
        if not nodes:
            nodes = self._read_slots()
            with self._lock:
                # Another master may lack the newest writes of the one before.
                self._lineage += bool(self._last_slots) and nodes != self._last_slots
                self._node_of_slot = self._last_slots = nodes
        return nodes[key_slot(key)]

    def _read_slots(self) -> list[_Node]:
        """The node of each slot. Raises redis' ConnectionError if no node of the cluster answers with all slots."""
        with self._lock:
            known = list(dict.fromkeys([*self._location.nodes, *self._pools]))
        trouble: RedisError = exceptions.ConnectionError("no node of the cluster answers")
        for node in known:
            ((_, _, reply),) = self._send(node, [(0, Command(b"", (b"CLUSTER", b"SLOTS")))])()
            if isinstance(reply, (*_REFUSED, NoPermissionError)):
                raise self._translate(reply)
            if isinstance(reply, RedisError):
                trouble = reply
                continue
            nodes: list[_Node] = [("", 0)] * SLOTS
            for first, last, master, *_ in reply:
                host = master[0].decode() or node[0]  # empty: the host that answered
                nodes[first : last + 1] = [(host, master[1])] * (last + 1 - first)
            if ("", 0) not in nodes:
                return nodes
            trouble = exceptions.ConnectionError(f"{node[0]}:{node[1]} has no node for some slots")
        raise exceptions.ConnectionError(_describe(trouble))

    def _translate(self, error: RedisError) -> DieselfsError:
        where = f"metadata in Redis at {self._location}"
        if isinstance(error, OutOfMemoryError) or str(error).startswith("OOM"):
            return StorageFull(f"{where}: its memory limit (maxmemory) is reached; raise it, then try again")
        if isinstance(error, _REFUSED):
            return Unavailable(f"{where}: user or password refused; set ?password_file=FILE in the URL")
        if isinstance(error, NoPermissionError):
            return Unavailable(
                f"{where}: the user lacks a permission; set the ACL line of docs/reference/metadata-keys.md"
            )
        return Unavailable(f"{where}: {_describe(error)}")


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
    """Load the scripts that a server does not have, as after its start or SCRIPT FLUSH.

    Returns the replies; an error of loading replaces the reply of each call of that script.
    """
    unknown = {call.script for _, call, reply in found if call.script and isinstance(reply, NoScriptError)}
    errors: dict[Script | None, Any] = {}
    for script in unknown:
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
