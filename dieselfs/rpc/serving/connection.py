"""One client's connection, on the side of whoever answers: messages and bulk bytes. This module waits for sockets."""

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from itertools import chain

import trio

from dieselfs.errors import ProtocolError
from dieselfs.limits import BULK_IDLE_TIMEOUT_S, KIB, MIB
from dieselfs.rpc.framing import FRAME_HEADER_BYTES, frame, frame_length

Buffer = bytes | bytearray | memoryview

_DESCRIPTOR = struct.Struct("i")
_RECEIVE_BYTES = 64 * KIB
_SEND_BYTES = 4 * MIB
_PIECES_MAX = 1024
"""Of one call to send: more, the kernel does not take."""
_UNSENT_BYTES = MIB
"""The kernel takes so many bytes more than the network takes at once. With the 16 KiB of trio's choice, it is given
what is to be sent in small portions, each for the price of a round of the loop.
"""


class ClientConnection:
    """Receives and sends for one task at a time. Counts bulk bytes.

    Every method raises trio.TooSlowError when no byte moves for BULK_IDLE_TIMEOUT_S, trio.BrokenResourceError
    when the client is gone. After an error or a cancel, the connection is of no further use.
    """

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        carrier = stream if isinstance(stream, trio.SocketStream) else stream.transport_stream
        if carrier.socket.family != socket.AF_UNIX:
            carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._received = bytearray()  # bytes that came, but that nobody asked for yet
        self.bulk_bytes_received = 0
        self.bulk_bytes_sent = 0

    async def receive_message(self, bytes_max: int, idle_timeout_s: float) -> bytes | None:
        """The next message, or None if the client hung up or said nothing for `idle_timeout_s`.

        Raises ProtocolError.
        """
        if self._received:  # nobody is kept waiting by one who does not wait for answers
            await trio.lowlevel.checkpoint()
        else:
            is_more = False
            with trio.move_on_after(idle_timeout_s):
                is_more = await self._receive_more()
            if not is_more:
                return None
        header = await self._receive_exactly(FRAME_HEADER_BYTES)
        return await self._receive_exactly(frame_length(header, bytes_max))

    async def _receive_more(self) -> bool:
        more = await self._stream.receive_some(_RECEIVE_BYTES)
        self._received += more
        return bool(more)

    async def _receive_exactly(self, length: int) -> bytes:
        while len(self._received) < length:
            with trio.fail_after(BULK_IDLE_TIMEOUT_S):
                if not await self._receive_more():
                    raise ProtocolError("the client hung up in the middle of a message")
        taken = bytes(self._received[:length])
        del self._received[:length]
        return taken

    async def receive_bulk(self, length: int) -> bytearray:
        """The `length` raw bytes that follow a call. The caller has checked `length`."""
        bulk = bytearray(length)
        filled = min(length, len(self._received))
        bulk[:filled] = self._received[:filled]
        del self._received[:filled]
        with memoryview(bulk) as view:
            while filled < length:
                filled += await self._receive_into(view[filled:])
        self.bulk_bytes_received += length
        return bulk

    async def _receive_into(self, destination: memoryview) -> int:
        with trio.fail_after(BULK_IDLE_TIMEOUT_S):
            if isinstance(self._stream, trio.SocketStream):
                size = await self._stream.socket.recv_into(destination)
            else:
                received = await self._stream.receive_some(len(destination))
                size = len(received)
                destination[:size] = received
        if size == 0:
            raise ProtocolError("the client hung up in the middle of a chunk")
        return size

    async def discard_bulk(self, length: int) -> None:
        """Receive and forget the bulk bytes of a call that is refused, so that the connection stays in step."""
        scratch = memoryview(bytearray(min(length, MIB)))
        taken = min(length, len(self._received))
        del self._received[:taken]
        while taken < length:
            taken += await self._receive_into(scratch[: length - taken])

    async def send(self, message: bytes, bulk: Iterable[Buffer] = ()) -> None:
        """Send a reply and the bulk bytes behind it, which are taken from `bulk` as they are sent. If the kernel takes
        all at once, no other task runs meanwhile.
        """
        framed = frame(message)
        for parcel, parcel_bytes in _parcels(chain([framed], bulk)):
            if isinstance(self._stream, trio.SocketStream):
                await self._send_together(self._stream.socket, parcel, parcel_bytes)
            else:
                with trio.fail_after(BULK_IDLE_TIMEOUT_S):
                    await self._stream.send_all(b"".join(parcel))
            self.bulk_bytes_sent += parcel_bytes
        self.bulk_bytes_sent -= len(framed)

    async def _send_together(
        self, connected: trio.socket.SocketType, views: list[Buffer], length: int
    ) -> None:
        """Send all of these, so many bytes, without joining them first: the kernel does that."""
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

    async def send_with_file(self, message: bytes, descriptor: int, length: int) -> None:
        """Send a reply with a descriptor, over a Unix socket; who gets it reads `length` bytes of the file, which count
        as sent. The descriptor stays open here. Raises OSError too, if the kernel passes none on.
        """
        assert isinstance(self._stream, trio.SocketStream)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))
        framed = frame(message)
        with trio.fail_after(BULK_IDLE_TIMEOUT_S):
            sent = await self._stream.socket.sendmsg([framed], [rights])
            await self._stream.send_all(framed[sent:])
        self.bulk_bytes_sent += length


def _write(connected: trio.socket.SocketType, views: list[Buffer]) -> int:
    """Give the kernel what it takes of these; returns how many bytes that is."""
    try:
        return os.writev(connected.fileno(), views)
    except BlockingIOError:
        return 0


def _left(views: list[Buffer], sent: int) -> list[Buffer]:
    """What is still to be sent when so many bytes are."""
    done = 0
    while done < len(views) and sent >= len(views[done]):
        sent -= len(views[done])
        done += 1
    views = views[done:]
    if sent:
        views[0] = memoryview(views[0])[sent:]
    return views


def _parcels(bulk: Iterable[Buffer]) -> Iterator[tuple[list[Buffer], int]]:
    """The same bytes in the same order, in lists of pieces that are sent with one call, each with its length."""
    parcel: list[Buffer] = []
    parcel_bytes = 0
    for buffer in bulk:
        size = len(buffer)
        if parcel_bytes + size > _SEND_BYTES or len(parcel) == _PIECES_MAX:
            if parcel:
                yield parcel, parcel_bytes
            parcel, parcel_bytes = [], 0
            while size > _SEND_BYTES:
                yield [memoryview(buffer)[:_SEND_BYTES]], _SEND_BYTES
                buffer = memoryview(buffer)[_SEND_BYTES:]
                size -= _SEND_BYTES
        parcel.append(buffer)
        parcel_bytes += size
    if parcel:
        yield parcel, parcel_bytes
