"""Listens on sockets, and runs one task per client. This module opens sockets.

An unauthenticated client costs little: such connections have slots of their own (`slots.py`), the handshake is
limited in bytes and time. An error of a client ends only its own connection, and is logged as often as a budget allows.
"""

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Protocol

import trio

from dieselfs.errors import ProtocolError
from dieselfs.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_PEER_MAX,
    FRAME_BYTES_MAX,
    HANDSHAKE_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    UNAUTHENTICATED_MAX,
)
from dieselfs.net import auth
from dieselfs.net.address import Address
from dieselfs.net.sockets import peer_user
from dieselfs.net.tls import ServerTls
from dieselfs.rpc.serving.accept_loop import accept_each
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import GREETED, LEFT, Identity, KeyRing, TokenLogins, shake_hands
from dieselfs.rpc.serving.listening import listening_at
from dieselfs.rpc.serving.slots import ConnectionSlot, ConnectionSlots, part_of
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.budget import EventBudget
from dieselfs.telemetry.registry import Registry

_ENDED = "connection ended"

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_listeners(address: Address) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen on `address`. Raises Unavailable with the reason. Removes the file of a Unix socket afterwards."""
    with ExitStack() as stack:
        sockets = await trio.to_thread.run_sync(stack.enter_context, listening_at(address))
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]
        try:
            yield listeners
        finally:
            for listener in listeners:
                listener.socket.close()


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
        share: int = 1,
        logins: TokenLogins | None = None,
    ) -> None:
        """`tls`: the present certificate, for each new connection; `role`: see `auth.transcript`. `share`: processes of
        the server, which have equal parts of all limits of connections. `logins`: of users with tokens, if they may.
        """
        metrics = metrics or Registry()
        self._handler = handler
        self._tls = tls
        self._role = role
        self._logins = logins
        limits = (part_of(limit, share) for limit in (UNAUTHENTICATED_MAX, CONNECTIONS_PER_PEER_MAX))
        # Changed only between checkpoints.
        self._slots = ConnectionSlots(part_of(clients_max, share), trio.current_time, *limits)
        self._told = EventBudget(share)  # as well
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

    async def serve_accepted(
        self, accepted: AsyncIterator[tuple[trio.SocketStream, bool, Callable[[], None]]]
    ) -> None:
        """Serve clients that another process has accepted, until cancelled. `accepted` yields for each of them the
        connection, whether it is encrypted, and what to call once it has ended.
        """
        async with trio.open_nursery() as nursery:
            async for stream, is_encrypted, ended in accepted:
                nursery.start_soon(self._serve_accepted, stream, is_encrypted, ended)

    async def _serve_accepted(
        self, stream: trio.SocketStream, is_encrypted: bool, ended: Callable[[], None]
    ) -> None:
        try:
            await self._serve_client(stream, is_encrypted)
        finally:
            ended()

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
        caller = await shake_hands(connection, self._handler.keys, self._role, is_trusted, self._logins)
        if caller == GREETED:
            log.debug("%s: %s", peer, caller)
            return
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
