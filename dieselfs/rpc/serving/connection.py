"""One client's connection on the server side: messages and bulk bytes. This module waits for sockets."""

import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain

import trio

from dieselfs.errors import ProtocolError
from dieselfs.limits import BULK_IDLE_TIMEOUT_S, CALL_BYTES_MAX, KIB, MIB
from dieselfs.net import auth
from dieselfs.net.sockets import rights
from dieselfs.net.tls import ServerTls
from dieselfs.rpc.messages import FRAME_HEADER_BYTES, frame, frame_length
from dieselfs.rpc.methods import PREFIX_BYTES, check_length
from dieselfs.rpc.serving.tls import TlsStream

Buffer = bytes | bytearray | memoryview

Pace = Callable[[int], Awaitable[None]]

STEP_BYTES = 256 * KIB
"""Bytes that are moved at once."""
STEP_S = 0.001
"""A sender that has not waited for this long lets other connections have their turn."""
_RECEIVE_BYTES = 64 * KIB
_GROWTH_BYTES = MIB
"""Memory for bulk bytes is taken in such steps."""
_BUFFERS_MAX = 1024
"""The kernel's limit for the buffers of one `writev`."""
_UNSENT_BYTES = MIB
"""Bytes that the kernel queues beyond those in flight. With trio's default of 16 KiB, each small portion
costs a round of the event loop.
"""


class ClientConnection:
    """Receives and sends for one task at a time. Counts bulk bytes.

    Every method raises trio.TooSlowError when no byte moves for BULK_IDLE_TIMEOUT_S, trio.BrokenResourceError
    when the client is gone. After an error or a cancellation, the connection is unusable.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._tls: TlsStream | None = None
        self.is_local = stream.socket.family == socket.AF_UNIX
        if not self.is_local:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._received = bytearray()  # bytes that no method has consumed yet
        self.name = self.peer = ""
        """The name in the logs of both sides, and the address of the client."""
        self.bulk_bytes_received = 0
        self.bulk_bytes_sent = 0

    async def secure(self, tls: ServerTls) -> None:
        """The TLS handshake; before anything else is received. Raises OSError."""
        self._tls = TlsStream(self._stream, tls)
        await self._tls.shake_hands()

    @property
    def channel(self) -> bytes:
        """What proofs of users cover (`auth.transcript`)."""
        if self._tls is not None:
            return self._tls.channel
        return auth.LOCAL_CHANNEL if self.is_local else auth.PLAIN_CHANNEL

    async def receive_message(self, bytes_max: int, idle_timeout_s: float) -> bytes | None:
        """The next message, or None if the client closed or was silent for `idle_timeout_s`. Raises ProtocolError,
        also for a call that is longer than its method allows.
        """
        if self._received:  # a client that pipelines calls must not starve the others
            await trio.lowlevel.checkpoint()
        else:
            is_more = False
            with trio.move_on_after(idle_timeout_s):
                is_more = await self._receive_more()
            if not is_more:
                return None
        header = await self._receive_exactly(FRAME_HEADER_BYTES)
        length = frame_length(header, bytes_max)
        if length > CALL_BYTES_MAX:
            await self._buffer(PREFIX_BYTES)
            check_length(self._received, length)
        return await self._receive_exactly(length)

    async def _receive_more(self) -> bool:
        if self._tls is None:
            more: Buffer = await self._stream.receive_some(_RECEIVE_BYTES)
        else:
            view = memoryview(bytearray(_RECEIVE_BYTES))
            more = view[: await self._tls.receive_into(view)]
        self._received += more
        return bool(more)

    async def _buffer(self, length: int) -> None:
        """Wait until this many bytes have arrived."""
        while len(self._received) < length:
            with trio.fail_after(BULK_IDLE_TIMEOUT_S):
                if not await self._receive_more():
                    raise ProtocolError("the client closed the connection within a message")

    async def _receive_exactly(self, length: int) -> bytes:
        await self._buffer(length)
        taken = bytes(self._received[:length])
        del self._received[:length]
        return taken

    async def receive_bulk(self, length: int, pace: Pace | None = None) -> bytearray:
        """The `length` raw bytes that follow a call. The caller has checked `length`. Memory is taken as they arrive.
        `pace` is called with the number of bytes when some of them have been received.
        """
        filled = min(length, len(self._received))
        bulk = self._received[:filled]
        del self._received[:filled]
        while filled < length:
            if filled == len(bulk):  # announced bytes that do not come take no memory
                bulk += bytes(min(length - filled, _GROWTH_BYTES))
            with memoryview(bulk) as view, view[filled : filled + STEP_BYTES] as free:
                size = await self._receive_into(free)
            filled += size
            if pace is not None:
                await pace(size)
        self.bulk_bytes_received += length
        return bulk

    async def _receive_into(self, destination: memoryview) -> int:
        with trio.fail_after(BULK_IDLE_TIMEOUT_S):
            if self._tls is None:
                size = await self._stream.socket.recv_into(destination)
            else:
                size = await self._tls.receive_into(destination)
        if size == 0:
            raise ProtocolError("the client closed the connection within bulk bytes")
        return size

    async def discard_bulk(self, length: int) -> None:
        """Receive and drop the bulk bytes of a refused call; the next message follows them."""
        scratch = memoryview(bytearray(_RECEIVE_BYTES))
        taken = min(length, len(self._received))
        del self._received[:taken]
        while taken < length:
            taken += await self._receive_into(scratch[: length - taken])

    async def send(self, message: bytes, bulk: Iterable[Buffer] = (), pace: Pace | None = None) -> None:
        """Send a reply and the bulk bytes behind it; `bulk` is consumed as it is sent. If the kernel takes all at once
        within STEP_S, there is no checkpoint. `pace` is called with the number of bulk bytes before some are sent.
        """
        framed = frame(message)
        message_bytes = len(framed)  # that are not sent yet
        turn_ends_s = time.perf_counter() + STEP_S
        for batch, batch_bytes in _batches(chain([framed], bulk), STEP_BYTES):
            if time.perf_counter() >= turn_ends_s:
                await trio.lowlevel.checkpoint()
                turn_ends_s = time.perf_counter() + STEP_S
            of_message = min(batch_bytes, message_bytes)
            message_bytes -= of_message
            if pace is not None and batch_bytes > of_message:
                await pace(batch_bytes - of_message)
            if self._tls is None:
                await self._send_batch(self._stream.socket, batch, batch_bytes)
            else:
                for encrypted in self._tls.encrypted(batch):
                    await self._send_batch(self._stream.socket, encrypted, sum(map(len, encrypted)))
            self.bulk_bytes_sent += batch_bytes
        self.bulk_bytes_sent -= len(framed)

    async def _send_batch(self, connected: trio.socket.SocketType, views: list[Buffer], length: int) -> None:
        """Send these buffers, of `length` bytes in all, without a copy."""
        try:
            sent = _write(connected, views)
            if sent == length:
                return
            with trio.fail_after(BULK_IDLE_TIMEOUT_S) as idle:
                while length := length - sent:
                    views = _left(views, sent)
                    await trio.lowlevel.wait_writable(connected)
                    sent = _write(connected, views)
                    idle.deadline = trio.current_time() + BULK_IDLE_TIMEOUT_S
        except OSError as error:
            raise trio.BrokenResourceError(f"the client is gone: {error.strerror}") from error

    async def send_with_files(self, message: bytes, descriptors: Sequence[int], length: int) -> None:
        """Send a reply with descriptors, over a Unix socket. The client reads `length` bytes of the files, which count
        as sent. The descriptors stay open here. Raises OSError too, if the kernel does not pass them.
        """
        assert self.is_local
        framed = frame(message)
        with trio.fail_after(BULK_IDLE_TIMEOUT_S):
            sent = await self._stream.socket.sendmsg([framed], rights(*descriptors))
            await self._stream.send_all(framed[sent:])
        self.bulk_bytes_sent += length


def _write(connected: trio.socket.SocketType, views: list[Buffer]) -> int:
    """Write without blocking; returns the bytes that the kernel took."""
    try:
        return os.writev(connected.fileno(), views)
    except BlockingIOError:
        return 0


def _left(views: list[Buffer], sent: int) -> list[Buffer]:
    """The rest of these buffers after their first `sent` bytes."""
    done = 0
    while done < len(views) and sent >= len(views[done]):
        sent -= len(views[done])
        done += 1
    views = views[done:]
    if sent:
        views[0] = memoryview(views[0])[sent:]
    return views


def _batches(bulk: Iterable[Buffer], bytes_max: int) -> Iterator[tuple[list[Buffer], int]]:
    """The same bytes in the same order, in lists of buffers for one call each, with the length of each list."""
    batch: list[Buffer] = []
    batch_bytes = 0
    for buffer in bulk:
        size = len(buffer)
        if batch_bytes + size > bytes_max or len(batch) == _BUFFERS_MAX:
            if batch:
                yield batch, batch_bytes
            batch, batch_bytes = [], 0
            while size > bytes_max:
                yield [memoryview(buffer)[:bytes_max]], bytes_max
                buffer = memoryview(buffer)[bytes_max:]
                size -= bytes_max
        batch.append(buffer)
        batch_bytes += size
    if batch:
        yield batch, batch_bytes
