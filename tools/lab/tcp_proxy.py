"""A TCP proxy that delays, stalls, cuts and alters what a server sends to its clients.

with tcp_proxy((host, port)) as proxy:
    client = connect(proxy.address)
    proxy.stall()

It runs in a thread, in the network namespace that the block is entered in. Each call returns when its fault holds.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import TypeVar

import trio

BLOCK_BYTES = 64 << 10
BLOCKS_MAX = 64
"""In flight in each direction of a connection; a delay holds no more than these."""
END_TIMEOUT_S = 30.0

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection
T = TypeVar("T")
Blocks = tuple[float, bytes]
"""When a block is due, and its bytes."""


@dataclass(frozen=True)
class Faults:
    """Bytes are counted that servers send from now on, over all connections.

    - `delay_s`: of all bytes, both ways
    - `is_stalled`: no byte passes, either way; connections stay open, and new ones are accepted
    - `cut_after_bytes`: the connection is reset behind these, once
    - `alter_after_bytes`: one bit of the byte behind these is flipped, once
    """

    delay_s: float = 0.0
    is_stalled: bool = False
    cut_after_bytes: int | None = None
    alter_after_bytes: int | None = None


@dataclass(frozen=True)
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
        self._flows = trio.Event()
        self._connections: set[_Connection] = set()
        self._scope = trio.CancelScope()
        self._started = Event()
        self._thread = Thread(target=trio.run, args=[self._run, listening.dup()])

    @property
    def server(self) -> str:
        """Its address, for clients of dieselfs."""
        return "tcp://{}:{}".format(*self.address)

    def delay(self, delay_s: float) -> None:
        self._call(lambda: self._change(delay_s=delay_s))

    def stall(self) -> None:
        self._call(lambda: self._change(is_stalled=True))

    def cut(self) -> None:
        """Reset all open connections."""
        self._call(self._cut)

    def cut_after(self, length_bytes: int) -> None:
        self._call(lambda: self._change(cut_after_bytes=length_bytes))

    def alter_after(self, length_bytes: int) -> None:
        self._call(lambda: self._change(alter_after_bytes=length_bytes))

    def heal(self) -> None:
        """Remove all faults."""
        no_faults = Faults()
        self._call(lambda: self._change(**vars(no_faults)))

    def passed(self) -> Passed:
        return self._passed

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(END_TIMEOUT_S)

    def end(self) -> None:
        self._call(self._scope.cancel)
        self._thread.join(END_TIMEOUT_S)

    def _call(self, change: Callable[[], T]) -> T:
        return trio.from_thread.run_sync(change, trio_token=self._token)

    def _change(self, **faults: float | None) -> None:
        self._faults = replace(self._faults, **faults)  # type: ignore[arg-type]  # names and types are those above
        if not self._faults.is_stalled:
            self._flows.set()
        elif self._flows.is_set():
            self._flows = trio.Event()

    def _cut(self) -> None:
        self._passed = replace(self._passed, cuts=self._passed.cuts + len(self._connections))
        for connection in self._connections:
            connection.cut()

    async def _run(self, listening: socket.socket) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._flows.set()
        self._started.set()
        with self._scope:
            await trio.serve_listeners(
                self._serve, [trio.SocketListener(trio.socket.from_stdlib_socket(listening))]
            )

    async def _serve(self, client: trio.SocketStream) -> None:
        self._passed = replace(self._passed, connections=self._passed.connections + 1)
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
                        await self._carry(connection)
                finally:
                    self._connections.discard(connection)

    async def _carry(self, connection: _Connection) -> None:
        async with trio.open_nursery() as nursery:
            for is_to_client in (False, True):
                send, receive = trio.open_memory_channel[Blocks](BLOCKS_MAX)
                nursery.start_soon(self._take, connection, is_to_client, send)
                nursery.start_soon(self._deliver, connection, is_to_client, receive)

    async def _take(
        self, connection: _Connection, is_to_client: bool, blocks: "trio.MemorySendChannel[Blocks]"
    ) -> None:
        source = connection.server if is_to_client else connection.client
        async with blocks:
            try:
                while block := await source.receive_some(BLOCK_BYTES):
                    await blocks.send((trio.current_time() + self._faults.delay_s, bytes(block)))
            except trio.BrokenResourceError:
                connection.cut()

    async def _deliver(
        self, connection: _Connection, is_to_client: bool, blocks: "trio.MemoryReceiveChannel[Blocks]"
    ) -> None:
        sink = connection.client if is_to_client else connection.server
        try:
            async for due_s, block in blocks:
                await trio.sleep_until(due_s)
                await self._flows.wait()
                passing = self._damaged(block) if is_to_client else block
                await sink.send_all(passing)
                if len(passing) < len(block):
                    self._passed = replace(self._passed, cuts=self._passed.cuts + 1)
                    connection.cut()
            await sink.send_eof()
        except trio.BrokenResourceError:
            connection.cut()

    def _damaged(self, block: bytes) -> bytes:
        """What of a block is sent to the client; shorter if the connection is to be reset behind it."""
        alter, cut, passed = self._faults.alter_after_bytes, self._faults.cut_after_bytes, self._passed
        if alter is not None and alter < len(block):
            block = block[:alter] + bytes([block[alter] ^ 1]) + block[alter + 1 :]
            passed = replace(passed, alterations=passed.alterations + 1)
        passing = block if cut is None else block[:cut]
        self._passed = replace(passed, bytes_to_clients=passed.bytes_to_clients + len(passing))
        self._change(
            alter_after_bytes=_remaining(alter, len(block)), cut_after_bytes=_remaining(cut, len(block))
        )
        return passing


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
