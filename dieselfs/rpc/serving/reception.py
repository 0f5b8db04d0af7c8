"""Sockets that are listened on, and one task per client. This module opens sockets.

A stranger costs little: connections are limited in all and for each address, the handshake in bytes and in
time, and what goes wrong with one client is logged and ends that client's connection only.
"""

import errno
import logging
import os
import socket
import ssl
import stat
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import trio

from dieselfs.errors import InvalidInput, ProtocolError, Unavailable
from dieselfs.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_PEER_MAX,
    FRAME_BYTES_MAX,
    HANDSHAKE_TIMEOUT_S,
    IDLE_TIMEOUT_S,
)
from dieselfs.rpc.address import Address, TcpAddress, UnixAddress
from dieselfs.rpc.connection import reachable_path
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import Identity, KeyRing, shake_hands

LISTEN_BACKLOG = 512
_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
_OUT_OF_DESCRIPTORS_PAUSE_S = 0.1

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_listeners(address: Address) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen on `address`. Raises Unavailable, saying why it cannot be.

    A Unix socket's file is removed afterwards.
    """
    try:
        if isinstance(address, TcpAddress):
            listeners = await trio.open_tcp_listeners(address.port, host=address.host, backlog=LISTEN_BACKLOG)
        else:
            listeners = [_unix_listener(address)]
    except OSError as error:
        raise Unavailable(f"cannot listen on {address}: {error.strerror or error}") from None
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.socket.close()
        if isinstance(address, UnixAddress):
            Path(address.path).unlink(missing_ok=True)


def _unix_listener(address: UnixAddress) -> trio.SocketListener:
    """A Unix socket that only our own user may connect to; one that a dead server left behind is replaced."""
    path = Path(address.path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInput(f"cannot listen on {address}: a file that is no socket is there")
        with socket.socket(socket.AF_UNIX) as probe, reachable_path(address.path) as name:
            if probe.connect_ex(name) == 0:
                raise Unavailable(f"cannot listen on {address}: a server is listening there already")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    old_mask = os.umask(0o177)
    try:
        with reachable_path(address.path) as name:
            listening.bind(name)
    finally:
        os.umask(old_mask)
    listening.listen(LISTEN_BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


class Host(Protocol):
    """Who answers those that are let in. What is in `traffic` is kept up to date for it."""

    @property
    def keys(self) -> KeyRing: ...

    @property
    def traffic(self) -> "Traffic": ...

    async def answer(self, connection: ClientConnection, caller: Identity, message: bytes) -> None:
        """Answer one call over its connection.

        Raises ProtocolError, trio.TooSlowError or trio.BrokenResourceError to end the conversation.
        """
        ...


class Traffic(Protocol):
    """Connections that there are, and bytes of those that are over."""

    connections: int
    bulk_bytes_received: int
    bulk_bytes_sent: int


class Reception:
    """Takes in the clients of a host, over any number of listeners: `clients_max` of them at one moment."""

    def __init__(
        self, host: Host, tls: ssl.SSLContext | None = None, clients_max: int = CONNECTIONS_MAX
    ) -> None:
        self._host = host
        self._tls = tls
        self._clients_max = clients_max
        self._clients: Counter[str] = Counter()  # by address; changed only between checkpoints

    @property
    def client_count(self) -> int:
        return self._clients.total()

    async def serve(self, listener: trio.SocketListener, is_encrypted: bool) -> None:
        """Accept clients until cancelled; then all their connections are closed."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                        raise
                    log.error("cannot accept a client: %s", error.strerror)
                    await trio.sleep(_OUT_OF_DESCRIPTORS_PAUSE_S)
                    continue
                nursery.start_soon(self._serve_client, stream, is_encrypted)

    async def _serve_client(self, stream: trio.SocketStream, is_encrypted: bool) -> None:
        peer = _peer_name(stream)
        if self._clients.total() >= self._clients_max or self._clients[peer] >= CONNECTIONS_PER_PEER_MAX:
            log.warning("%s: turned away, %d connections from there", peer, self._clients[peer])
            stream.socket.close()
            return
        self._clients[peer] += 1
        self._host.traffic.connections = self.client_count
        connection: ClientConnection | None = None
        try:
            secured = await self._secure(stream) if is_encrypted else stream
            connection = ClientConnection(secured)
            await self._converse(connection, peer, _is_own_user(stream))
        except (ProtocolError, trio.TooSlowError, trio.BrokenResourceError, ssl.SSLError, OSError) as error:
            log.info("%s: connection ended: %s", peer, error or type(error).__name__)
        except Exception:
            log.exception("%s: connection ended by a fault of ours", peer)
        finally:
            self._clients[peer] -= 1
            self._clients += Counter()  # drops those at zero
            self._host.traffic.connections = self.client_count
            if connection is not None:
                self._host.traffic.bulk_bytes_received += connection.bulk_bytes_received
                self._host.traffic.bulk_bytes_sent += connection.bulk_bytes_sent
            stream.socket.close()

    async def _secure(self, stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
        assert self._tls is not None
        secured = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        with trio.fail_after(HANDSHAKE_TIMEOUT_S):
            await secured.do_handshake()
        return secured

    async def _converse(self, connection: ClientConnection, peer: str, is_trusted: bool) -> None:
        caller = await shake_hands(connection, self._host.keys, is_trusted)
        if caller is None:
            log.warning("%s: handshake failed", peer)
            return
        while (message := await connection.receive_message(FRAME_BYTES_MAX, IDLE_TIMEOUT_S)) is not None:
            await self._host.answer(connection, caller, message)


def _peer_name(stream: trio.SocketStream) -> str:
    with suppress(OSError):
        name = stream.socket.getpeername()
        if isinstance(name, tuple):
            return str(name[0])
        _, user, _ = _peer_credentials(stream)
        return f"local user {user}"
    return "unknown"


def _peer_credentials(stream: trio.SocketStream) -> tuple[int, int, int]:
    packed = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    process, user, group = _PEER_CREDENTIALS.unpack(packed)
    return process, user, group


def _is_own_user(stream: trio.SocketStream) -> bool:
    """Whether the client is on a Unix socket and runs as our own user, or as root."""
    return stream.socket.family == socket.AF_UNIX and _peer_credentials(stream)[1] in (os.geteuid(), 0)
