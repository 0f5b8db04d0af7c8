"""TLS on the side of the server, over a trio stream. This module waits for sockets."""

import os
from collections.abc import Iterator, Sequence

import trio

from dieselfs.net.tls import STEP_BYTES, STEPS, Buffer, ServerTls, TlsEngine, scratch


class TlsStream:
    """For one task at a time. Methods raise OSError (also ssl.SSLError); after an error or a cancellation the stream is
    unusable.
    """

    def __init__(self, stream: trio.SocketStream, tls: ServerTls) -> None:
        self._socket = stream.socket
        self._stream = stream
        self._engine = TlsEngine(tls.context, is_server=True)
        self.channel = tls.channel

    async def shake_hands(self) -> None:
        """Raises ssl.SSLError; the client has then been told why. Raises ConnectionError if it has closed."""
        while True:
            try:
                is_done = self._engine.shake()
            finally:
                if alert := self._engine.take():
                    await self._stream.send_all(alert)
            if is_done:
                return
            await self._receive("it closed the connection in the TLS handshake")

    async def receive_into(self, destination: memoryview) -> int:
        """At least one byte; 0 if the client has closed."""
        engine, has_waited = self._engine, False
        try:
            filled = engine.decrypt_into(destination) if engine.waiting_bytes else 0
            while not filled:
                has_waited |= await self._receive("it closed the connection")
                filled = engine.decrypt_into(destination)
        except ConnectionError:
            filled = 0
        if not has_waited:  # a client that sends without a pause must not starve the others
            await trio.lowlevel.checkpoint()
        return filled

    def encrypted(self, views: Sequence[Buffer]) -> Iterator[list[Buffer]]:
        """The bytes to send for these buffers, up to STEPS at a time, which are encrypted when they are requested."""
        taken: list[Buffer] = []
        for step in _steps(views):
            self._engine.encrypt(step)
            taken.append(self._engine.take())
            if len(taken) == STEPS:
                yield taken
                taken = []
        if taken:
            yield taken

    async def _receive(self, reason: str) -> bool:
        """Take what has arrived; returns whether it had to wait."""
        view, has_waited = scratch()[:STEP_BYTES], False  # OpenSSL keeps as much memory for this connection
        while True:
            try:
                # No checkpoint, so other tasks can use the memory.
                size = os.readv(self._socket.fileno(), [view])
                break
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
                has_waited = True
        if not size:
            raise ConnectionResetError(reason)
        self._engine.feed(view[:size])
        return has_waited


def _steps(views: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same bytes in pieces of up to STEP_BYTES: a record for each small file would be slow."""
    small: list[Buffer] = []
    small_bytes = 0
    for view in views:
        if small and small_bytes + len(view) > STEP_BYTES:
            yield b"".join(small)
            small, small_bytes = [], 0
        if len(view) < STEP_BYTES:
            if len(view):
                small.append(view)
                small_bytes += len(view)
            continue
        whole = memoryview(view)
        for start in range(0, len(whole), STEP_BYTES):
            yield whole[start : start + STEP_BYTES]
    if len(small) == 1:
        yield small[0]
    elif small:
        yield b"".join(small)
