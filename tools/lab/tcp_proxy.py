"""A TCP proxy that delays, stalls, cuts and alters the bytes that a server sends to its clients.

It runs in a thread, in the network namespace of the thread that enters the block. Each call returns when its fault is
in effect.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Thread

import trio

from lab.namespace import command
from lab.network import Host

BLOCK_BYTES = 64 << 10
END_TIMEOUT_S = 30.0

_PREFERENCE, _LOCAL_PREFERENCE = "10", "20"
_TABLE = "100"
_POLL_S = 0.01
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


@dataclass
class Faults:
    """Bytes are counted that servers send from now on, over all connections.

    - `delay_s`: of each block of BLOCK_BYTES, both ways
    - `is_stalled`: no byte passes, either way; connections stay open, and new ones are accepted
    - `cut_after_bytes`: the connection is reset after these, once
    - `alter_after_bytes`: one bit of the byte after these is flipped, once
    """

    delay_s: float = 0.0
    is_stalled: bool = False
    cut_after_bytes: int | None = None
    alter_after_bytes: int | None = None


@dataclass
class Passed:
    """Totals: connections, bytes to clients, faults injected."""

    connections: int = 0
    bytes_to_clients: int = 0
    cuts: int = 0
    alterations: int = 0


@dataclass(eq=False)
class _Connection:
    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def cut(self) -> None:
        for stream in (self.client, self.server):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.scope.cancel()


class TcpProxy:
    """Its public methods are called outside trio. The state changes in the proxy's thread, between checkpoints only."""

    def __init__(self, listening: socket.socket, target: tuple[str, int]) -> None:
        self.address: tuple[str, int] = listening.getsockname()
        self._target = target
        self._faults, self._passed = Faults(), Passed()
        self._connections: set[_Connection] = set()
        self._scope = trio.CancelScope()
        self._started = Event()
        self._thread = Thread(target=trio.run, args=[self._run, listening.dup()])

    @property
    def server(self) -> str:
        """Its address, for clients of dieselfs."""
        return "tcp://{}:{}".format(*self.address)

    def delay(self, delay_s: float) -> None:
        self._call(partial(setattr, self._faults, "delay_s", delay_s))

    def stall(self) -> None:
        self._call(partial(setattr, self._faults, "is_stalled", True))

    def cut(self) -> None:
        """Reset all open connections."""
        self._call(self._cut)

    def cut_after(self, length_bytes: int) -> None:
        self._call(partial(setattr, self._faults, "cut_after_bytes", length_bytes))

    def alter_after(self, length_bytes: int) -> None:
        self._call(partial(setattr, self._faults, "alter_after_bytes", length_bytes))

    def heal(self) -> None:
        """Remove all faults."""
        self._call(partial(vars(self._faults).update, vars(Faults())))

    def passed(self) -> Passed:
        return replace(self._passed)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(END_TIMEOUT_S)

    def end(self) -> None:
        self._call(self._scope.cancel)
        self._thread.join(END_TIMEOUT_S)

    def _call(self, change: Callable[[], None]) -> None:
        trio.from_thread.run_sync(change, trio_token=self._token)

    def _cut(self) -> None:
        self._passed.cuts += len(self._connections)
        for connection in self._connections:
            connection.cut()

    async def _run(self, listening: socket.socket) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._started.set()
        with self._scope:
            await trio.serve_listeners(
                self._serve, [trio.SocketListener(trio.socket.from_stdlib_socket(listening))]
            )

    async def _serve(self, client: trio.SocketStream) -> None:
        self._passed.connections += 1
        async with client:
            try:
                server = await trio.open_tcp_stream(*self._target)
            except OSError:
                return
            async with server:
                connection = _Connection(client, server)
                self._connections.add(connection)
                try:
                    with connection.scope:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(self._carry, connection, client, server)
                            nursery.start_soon(self._carry, connection, server, client)
                finally:
                    self._connections.discard(connection)

    async def _carry(
        self, connection: _Connection, source: trio.SocketStream, sink: trio.SocketStream
    ) -> None:
        try:
            while block := bytes(await source.receive_some(BLOCK_BYTES)):
                await trio.sleep(self._faults.delay_s)
                while self._faults.is_stalled:
                    await trio.sleep(_POLL_S)
                passing = self._damaged(block) if sink is connection.client else block
                await sink.send_all(passing)
                if len(passing) < len(block):
                    self._passed.cuts += 1
                    connection.cut()
            await sink.send_eof()
        except trio.BrokenResourceError:
            connection.cut()

    def _damaged(self, block: bytes) -> bytes:
        """The bytes to send to the client for a block; fewer if the connection is then to be reset."""
        faults, passing = self._faults, bytearray(block)
        if faults.alter_after_bytes is not None and faults.alter_after_bytes < len(block):
            passing[faults.alter_after_bytes] ^= 1
            self._passed.alterations += 1
        del passing[len(block) if faults.cut_after_bytes is None else faults.cut_after_bytes :]
        self._passed.bytes_to_clients += len(passing)
        faults.alter_after_bytes = _remaining(faults.alter_after_bytes, len(block))
        faults.cut_after_bytes = _remaining(faults.cut_after_bytes, len(block))
        return bytes(passing)


def _remaining(after_bytes: int | None, length_bytes: int) -> int | None:
    """Bytes until a fault; None for one that is done, or not set."""
    return None if after_bytes is None or after_bytes < length_bytes else after_bytes - length_bytes


@contextmanager
def tcp_proxy(target: tuple[str, int], host: str = "127.0.0.1") -> Iterator[TcpProxy]:
    """A proxy in front of the server at `target`, on a free port of `host`, until the end of the block."""
    with socket.create_server((host, 0)) as listening, proxy_at(listening, target) as proxy:
        yield proxy


@contextmanager
def proxy_at(listening: socket.socket, target: tuple[str, int]) -> Iterator[TcpProxy]:
    """A proxy between a listening socket, of any namespace, and the server at `target`, until the end of the block."""
    proxy = TcpProxy(listening, target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.end()


@contextmanager
def intercepted(source: Host, target: Host, port: int) -> Iterator[TcpProxy]:
    """Until the end of the block, new connections from `source` to this port of `target` go through a proxy.

    One at a time for each source.
    """
    with ExitStack() as stack:
        with source.inside():
            listening = stack.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_IP, socket.IP_TRANSPARENT, 1)  # the address is another host's
            listening.bind((target.address, port))
            listening.listen()
        with target.inside():
            proxy = stack.enter_context(proxy_at(listening, (target.address, port)))
        _redirect(source, target, port)
        stack.callback(_restore, source)
        yield proxy


def _redirect(source: Host, target: Host, port: int) -> None:
    """Route packets from `source` to this port to the local host."""
    route = ["local", target.address, "dev", "lo", "src", source.address, "table", _TABLE]
    whither = ["to", target.address, "ipproto", "tcp", "dport", str(port)]
    with source.inside():
        command("ip", "route", "replace", *route)
        # The rule for local addresses is the first in a new namespace; this one must precede it.
        if source.run(["ip", "rule", "show", "pref", "0"]):
            command("ip", "rule", "add", "pref", _LOCAL_PREFERENCE, "lookup", "local")
            command("ip", "rule", "delete", "pref", "0")
        command("ip", "rule", "add", "pref", _PREFERENCE, *whither, "lookup", _TABLE)


def _restore(source: Host) -> None:
    with source.inside():
        command("ip", "rule", "delete", "pref", _PREFERENCE)
