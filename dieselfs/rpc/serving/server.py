"""Listens on sockets, and runs one task per client. This module opens sockets.

An unauthenticated client costs little: such connections have slots of their own (`slots.py`), the handshake is
limited in bytes and time. An error of a client ends only its own connection, and is logged as often as a budget allows.
"""

import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import trio

from dieselfs.errors import InvalidInput, ProtocolError, Unavailable
from dieselfs.limits import (
    CONNECTIONS_MAX,
    FRAME_BYTES_MAX,
    HANDSHAKE_TIMEOUT_S,
    IDLE_TIMEOUT_S,
)
from dieselfs.net import auth
from dieselfs.net.address import Address, TcpAddress, UnixAddress
from dieselfs.net.sockets import peer_user, reachable_path
from dieselfs.net.tls import ServerTls
from dieselfs.rpc.serving.accept_loop import accept_each
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import LEFT, Identity, KeyRing, shake_hands
from dieselfs.rpc.serving.slots import ConnectionSlot, ConnectionSlots
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.budget import EventBudget
from dieselfs.telemetry.registry import Registry

LISTEN_BACKLOG = 512
_ENDED = "connection ended"

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_listeners(address: Address) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen on `address`. Raises Unavailable with the reason. Removes the file of a Unix socket afterwards."""
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
    """A Unix socket for the own user only; replaces the stale socket of a dead server."""
    path = Path(address.path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInput(f"cannot listen on {address}: the path exists and is no socket")
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


class RpcHandler(Protocol):
    """Answers the calls of authenticated clients."""

    @property
    def keys(self) -> KeyRing: ...

    def logged_in(self, connection: ClientConnection, caller: Identity) -> None:
        """Note a client that has proved its key."""
        ...

    def refused(self, connection: ClientConnection, reason: str) -> None:
        """Note a client that has not."""
        ...

    async def answer(self, connection: ClientConnection, caller: Identity, message: bytes) -> None:
        """Answer one call. ProtocolError, trio.TooSlowError and trio.BrokenResourceError end the connection."""
        ...


class RpcServer:
    """Serves clients from any number of listeners, up to `clients_max` with a key at a time."""

    def __init__(
        self,
        handler: RpcHandler,
        tls: Callable[[], ServerTls] | None = None,
        clients_max: int = CONNECTIONS_MAX,
        role: str = auth.SERVER_ROLE,
        metrics: Registry | None = None,
    ) -> None:
        """`tls`: the present certificate, for each new connection; `role`: see `auth.transcript`."""
        metrics = metrics or Registry()
        self._handler = handler
        self._tls = tls
        self._role = role
        self._slots = ConnectionSlots(clients_max, trio.current_time)  # changed only between checkpoints
        self._told = EventBudget()  # as well
        metrics.declare(catalogue.RPC_CONNECTIONS, lambda: self.client_count)
        self._received = metrics.declare(catalogue.RPC_RECEIVED_BYTES)
        self._sent = metrics.declare(catalogue.RPC_SENT_BYTES)

    @property
    def client_count(self) -> int:
        return self._slots.count

    async def serve(self, listener: trio.SocketListener, is_encrypted: bool) -> None:
        """Accept clients until cancelled; then all their connections are closed."""
        async with trio.open_nursery() as nursery:
            await accept_each(
                listener,
                lambda stream: nursery.start_soon(self._serve_client, stream, is_encrypted),
                "client",
            )

    async def _serve_client(self, stream: trio.SocketStream, is_encrypted: bool) -> None:
        peer = _peer_name(stream)
        scope = trio.CancelScope()
        is_local = stream.socket.family == socket.AF_UNIX
        slot = self._slots.enter(peer, scope.cancel, is_local)
        if isinstance(slot, str):
            self._tell(logging.WARNING, "connection refused", peer, slot)
            stream.socket.close()
            return
        connection = ClientConnection(stream)
        connection.peer = peer
        is_secured = False
        try:
            with scope:
                if is_encrypted:
                    assert self._tls is not None
                    with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                        await connection.secure(self._tls())
                is_secured = True
                await self._answer_calls(connection, slot, peer, _is_own_user(stream))
            if scope.cancelled_caught:
                self._tell(logging.INFO, _ENDED, peer, "it gave way to others before it had proved a key")
        except (ProtocolError, trio.TooSlowError, trio.BrokenResourceError, OSError) as error:
            reason = str(error) or str(error.__cause__ or "") or type(error).__name__
            hint = (
                ""
                if is_secured
                else "; the client speaks no TLS 1.3, or refuses the certificate: "
                "tls must be off at both ends or at neither"
            )
            self._tell(logging.INFO, _ENDED, peer, reason + hint, is_known=slot.is_known)
        except Exception:  # a bug ends this connection, not the server
            log.exception("%s: connection ended by an internal error", peer)
        finally:
            self._slots.leave(slot)
            self._received.value += connection.bulk_bytes_received
            self._sent.value += connection.bulk_bytes_sent
            stream.socket.close()

    def _tell(self, level: int, event: str, peer: str, reason: str, is_known: bool = False) -> None:
        """Log what a client has caused, as often as `EventBudget` allows. `is_known`: it has proved a key."""
        omitted = sum(self._told.begin(trio.current_time()).values())
        if omitted:
            log.warning("%d further connections were refused or ended with an error", omitted)
        if self._told.take(event, "known" if is_known else "", peer):
            log.log(level, "%s: %s: %s", peer, event, reason)

    async def _answer_calls(
        self, connection: ClientConnection, slot: ConnectionSlot, peer: str, is_trusted: bool
    ) -> None:
        caller = await shake_hands(connection, self._handler.keys, self._role, is_trusted)
        if isinstance(caller, str):
            level = logging.INFO if caller == LEFT else logging.WARNING
            self._tell(level, "handshake failed", peer, caller)
            self._handler.refused(connection, caller)
            return
        if not slot.is_known and not self._slots.prove(slot):
            return
        self._handler.logged_in(connection, caller)
        while (message := await connection.receive_message(FRAME_BYTES_MAX, IDLE_TIMEOUT_S)) is not None:
            await self._handler.answer(connection, caller, message)


def _peer_name(stream: trio.SocketStream) -> str:
    with suppress(OSError):
        name = stream.socket.getpeername()
        if isinstance(name, tuple):
            return str(name[0])
        return f"local user {peer_user(stream.socket)}"
    return "unknown"


def _is_own_user(stream: trio.SocketStream) -> bool:
    """Whether the client is on a Unix socket and runs as the user of this process, or as root."""
    return stream.socket.family == socket.AF_UNIX and peer_user(stream.socket) in (os.geteuid(), 0)
