"""Listens for browsers, and gives their requests to the app, with Hypercorn. This module opens sockets.

Connections are bounded, and so is each wait for a browser. A connection that takes no bytes is closed.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from dieselfs.errors import Unavailable, os_errors_as
from dieselfs.limits import KIB
from dieselfs.net.address import TcpAddress
from dieselfs.net.tls import ServerTls
from dieselfs.rpc.serving.accept_loop import accept_each
from dieselfs.rpc.serving.slots import ConnectionSlots
from dieselfs.telemetry.budget import EventBudget

CONNECTIONS_MAX = 128
CONNECTIONS_PER_ADDRESS_MAX = 48
"""Of browsers that are logged in; in all, and from one address."""
UNAUTHENTICATED_MAX = 64
"""Other connections; the oldest gives way (`rpc/serving/slots.py`)."""
LOGGED_IN = "dieselfs.logged_in"
"""In the scope of a request: a function that the app calls when the browser is logged in."""
HANDSHAKE_S = 10.0
IDLE_S = 20.0
SEND_S = 20.0
HEADERS_BYTES_MAX = 16 * KIB
BODY_BYTES_MAX = 4 * KIB

log = logging.getLogger(__name__)


class _BoundedStream(trio.abc.HalfCloseableStream):
    """A stream of a browser whose writes end after SEND_S: Hypercorn waits for them without end."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(SEND_S):
            await self._stream.send_all(data)
            return
        self.socket.close()
        raise trio.BrokenResourceError("the browser takes no bytes")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Http1Server(TCPServer):
    """Never switches to HTTP/2, for which Hypercorn has no idle limit: such a connection ends."""

    async def _read_data(self) -> None:
        switching: Any = self.protocol
        self.protocol = switching.protocol
        with suppress(H2ProtocolAssumedError, H2CProtocolRequiredError):
            await super()._read_data()


class _Browsers:
    """The connections. Those that are not logged in have slots of their own, as those of the API that proved no key."""

    def __init__(self, app: Any, tls: Callable[[], ServerTls] | None) -> None:
        self._tls = tls
        self._config = Config()
        self._config.include_server_header = False
        self._config.keep_alive_timeout = IDLE_S
        self._config.ssl_handshake_timeout = HANDSHAKE_S
        self._config.h11_max_incomplete_size = HEADERS_BYTES_MAX
        self._config.h2_max_concurrent_streams = 16
        self._app = app
        self._context = WorkerContext(None)
        self._open: list[trio.SocketStream] = []
        self._slots = ConnectionSlots(
            CONNECTIONS_MAX, trio.current_time, UNAUTHENTICATED_MAX, CONNECTIONS_PER_ADDRESS_MAX
        )
        self._told = EventBudget()

    async def accept(self, listener: trio.SocketListener) -> None:
        """Serve browsers until cancelled."""
        async with trio.open_nursery() as nursery:
            try:
                await accept_each(listener, lambda stream: nursery.start_soon(self._serve, stream), "browser")
            finally:
                for open_stream in self._open:  # ends writes, which Hypercorn shields
                    open_stream.socket.close()

    def _tell_refused(self, address: str) -> None:
        if omitted := sum(self._told.begin(trio.current_time()).values()):
            log.warning("%d further browsers were refused", omitted)
        if self._told.take("refused", "", address):
            log.warning("%s: browser refused: too many connections", address)

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            address = str(stream.socket.getpeername()[0])
        except OSError:
            stream.socket.close()
            return
        slot = self._slots.enter(address, stream.socket.close)
        if isinstance(slot, str):
            self._tell_refused(address)
            stream.socket.close()
            return
        self._open.append(stream)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[LOGGED_IN] = lambda: slot.is_known or self._slots.prove(slot)
            await self._app(scope, receive, send)

        try:
            bounded = _BoundedStream(stream)
            shown: Any = bounded
            if self._tls is not None:
                context = self._tls().context
                shown = trio.SSLStream(bounded, context, server_side=True, https_compatible=True)
            wrapped = wrap_app(app, BODY_BYTES_MAX, "asgi")
            await _Http1Server(wrapped, self._config, self._context, ConnectionState({}), shown)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.debug("%s: browser disconnected: %s", address, error)
        except Exception:  # a bug ends this connection, not the page
            log.exception("%s: the connection of a browser ended by an internal error", address)
        finally:
            self._open.remove(stream)
            self._slots.leave(slot)
            stream.socket.close()


@asynccontextmanager
async def serving(
    make_app: Callable[[int], Any], address: TcpAddress, tls: Callable[[], ServerTls] | None
) -> AsyncIterator[int]:
    """Answer browsers until the end of the block; yields the port, which `make_app` gets.

    Raises Unavailable if the address cannot be used.
    """
    with os_errors_as(Unavailable, f"cannot serve the page at {address}"):
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    port = int(listeners[0].socket.getsockname()[1])
    browsers = _Browsers(make_app(port), tls)
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(browsers.accept, listener)
            yield port
            nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.socket.close()
