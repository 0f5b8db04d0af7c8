"""A connection that misbehaves: a TCP proxy that delays, stalls, cuts and alters what a server sends to its clients.

with tcp_proxy((host, port)) as proxy:
    client = connect(proxy.address)
    proxy.stall()

It runs in a process of its own (this module as a program), on the host of the network that the block is entered on.
What is asked of it holds when the call returns.
"""

import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import trio

ANSWER_TIMEOUT_S = 30.0
PIECE_BYTES = 64 << 10
PIECES_MAX = 64
"""On their way in each direction of a connection; a delay carries no more than these at once."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing says that the connection is broken, not that it is over


@dataclass(frozen=True)
class Faults:
    """What the proxy does to what passes. Bytes are counted that servers send from now on, over all connections.

    - `delay_s`: all bytes, both ways, arrive so much later
    - `is_stalled`: nothing passes, either way; connections stay open, and new ones come about
    - `cut_after_bytes`: the connection over which the byte behind these would pass breaks there, once
    - `alter_after_bytes`: one bit of the byte behind these is turned, once
    """

    delay_s: float = 0.0
    is_stalled: bool = False
    cut_after_bytes: int | None = None
    alter_after_bytes: int | None = None


@dataclass(frozen=True)
class Passed:
    """What has passed so far: connections, bytes to clients, faults that were done to them."""

    connections: int = 0
    bytes_to_clients: int = 0
    cuts: int = 0
    alterations: int = 0


# -- those who use it -----------------------------------------------------------------------------------------


class TcpProxy:
    def __init__(self, process: "subprocess.Popen[bytes]", address: tuple[str, int]) -> None:
        self._process = process
        self._faults = Faults()
        self.address = address

    @property
    def server(self) -> str:
        """Its address, for clients of dieselfs."""
        return f"tcp://{self.address[0]}:{self.address[1]}"

    def delay(self, delay_s: float) -> None:
        self._change(replace(self._faults, delay_s=delay_s))

    def stall(self) -> None:
        self._change(replace(self._faults, is_stalled=True))

    def cut(self) -> None:
        """Break all connections that there are."""
        self._ask("cut", {})

    def cut_after(self, length_bytes: int) -> None:
        self._change(replace(self._faults, cut_after_bytes=length_bytes))

    def alter_after(self, length_bytes: int) -> None:
        self._change(replace(self._faults, alter_after_bytes=length_bytes))

    def heal(self) -> None:
        """From now on everything passes as it came."""
        self._change(Faults())

    def passed(self) -> Passed:
        return Passed(**self._ask("passed", {}))

    def _change(self, faults: Faults) -> None:
        self._ask("faults", asdict(faults))
        self._faults = replace(faults, cut_after_bytes=None, alter_after_bytes=None)  # these are done once

    def _ask(self, what: str, values: dict[str, object]) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, values]).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._answer())
        return answer

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        is_answer, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        answer = self._process.stdout.readline() if is_answer else b""
        assert answer, "the proxy does not answer"
        return answer


@contextmanager
def tcp_proxy(target: tuple[str, int], host: str = "127.0.0.1") -> Iterator[TcpProxy]:
    """A proxy in front of the server at `target`, on a free port of `host`; gone in the end."""
    with socket.create_server((host, 0)) as listening, proxy_at(listening, target) as proxy:
        yield proxy


@contextmanager
def proxy_at(listening: socket.socket, target: tuple[str, int]) -> Iterator[TcpProxy]:
    """A proxy between those who connect to a socket and the server at `target`; gone in the end.

    It reaches the server from the host that the block is entered on; the socket may be of another one.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.tcp_proxy", str(listening.fileno()), target[0], str(target[1])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)},
        pass_fds=(listening.fileno(),),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            host, port = listening.getsockname()
            yield TcpProxy(process, (host, port))
        finally:
            process.kill()


# -- the program ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Connection:
    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope

    def cut(self) -> None:
        for stream in (self.client, self.server):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.scope.cancel()


class _Line:
    """All connections through the proxy. Its state changes between checkpoints only."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._faults = Faults()
        self._flows = trio.Event()
        self._flows.set()
        self._connections: set[_Connection] = set()
        self.passed = Passed()

    def change(self, faults: Faults) -> None:
        self._faults = faults
        if not faults.is_stalled:
            self._flows.set()
        elif self._flows.is_set():
            self._flows = trio.Event()

    def cut(self) -> None:
        self.passed = replace(self.passed, cuts=self.passed.cuts + len(self._connections))
        for connection in self._connections:
            connection.cut()

    async def serve(self, client: trio.SocketStream) -> None:
        """One connection, from its beginning to its end."""
        self.passed = replace(self.passed, connections=self.passed.connections + 1)
        async with client:
            try:
                server = await trio.open_tcp_stream(*self._target)
            except OSError:
                return
            async with server:
                with trio.CancelScope() as scope:
                    await self._carry(_Connection(client, server, scope))

    async def _carry(self, connection: _Connection) -> None:
        self._connections.add(connection)
        try:
            async with trio.open_nursery() as nursery:
                for is_to_client in (False, True):
                    send, receive = trio.open_memory_channel[tuple[float, bytes]](PIECES_MAX)
                    nursery.start_soon(self._take, connection, is_to_client, send)
                    nursery.start_soon(self._deliver, connection, is_to_client, receive)
        finally:
            self._connections.discard(connection)

    async def _take(
        self,
        connection: _Connection,
        is_to_client: bool,
        pieces: "trio.MemorySendChannel[tuple[float, bytes]]",
    ) -> None:
        source = connection.server if is_to_client else connection.client
        async with pieces:
            try:
                while piece := await source.receive_some(PIECE_BYTES):
                    await pieces.send((trio.current_time() + self._faults.delay_s, bytes(piece)))
            except trio.BrokenResourceError:
                connection.cut()

    async def _deliver(
        self,
        connection: _Connection,
        is_to_client: bool,
        pieces: "trio.MemoryReceiveChannel[tuple[float, bytes]]",
    ) -> None:
        sink = connection.client if is_to_client else connection.server
        try:
            async for due_s, piece in pieces:
                await trio.sleep_until(due_s)
                await self._flows.wait()
                if is_to_client:
                    passing = self._damaged(piece)
                    await sink.send_all(passing)
                    if len(passing) < len(piece):
                        self.passed = replace(self.passed, cuts=self.passed.cuts + 1)
                        connection.cut()
                else:
                    await sink.send_all(piece)
            await sink.send_eof()
        except trio.BrokenResourceError:
            connection.cut()

    def _damaged(self, piece: bytes) -> bytes:
        """What is left of a piece on its way to a client; shorter if the connection is to break behind it."""
        alter, cut = self._faults.alter_after_bytes, self._faults.cut_after_bytes
        if alter is not None and alter < len(piece):
            piece = piece[:alter] + bytes([piece[alter] ^ 1]) + piece[alter + 1 :]
            self.passed = replace(self.passed, alterations=self.passed.alterations + 1)
        passing = piece if cut is None else piece[:cut]
        self.passed = replace(self.passed, bytes_to_clients=self.passed.bytes_to_clients + len(passing))
        self._faults = replace(
            self._faults, alter_after_bytes=_left(alter, len(piece)), cut_after_bytes=_left(cut, len(piece))
        )
        return passing


def _left(after_bytes: int | None, length_bytes: int) -> int | None:
    """How much is still to pass before a fault; None for one that is done, or not asked for."""
    return None if after_bytes is None or after_bytes < length_bytes else after_bytes - length_bytes


async def _obey(line: _Line) -> None:
    """Do what comes on standard input, until it ends (with the test)."""
    rest = b""
    async for received in trio.lowlevel.FdStream(os.dup(0)):
        *words, rest = (rest + received).split(b"\n")
        for word in words:
            what, values = json.loads(word)
            if what == "faults":
                line.change(Faults(**values))
            elif what == "cut":
                line.cut()
            print(json.dumps(asdict(line.passed)), flush=True)


async def _main(listening: socket.socket, target: tuple[str, int]) -> None:
    line = _Line(target)
    async with trio.open_nursery() as nursery:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        nursery.start_soon(trio.serve_listeners, line.serve, [listener])
        await _obey(line)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main, socket.socket(fileno=int(sys.argv[1])), (sys.argv[2], int(sys.argv[3])))
