"""Sends and receives the bytes of a connection, each wait bounded. This module waits for sockets.

The kernel waits: one call fills a large buffer and returns in between only every WAIT_LOOK_S, to check the timeout. A
wakeup for each arrival costs both ends more: the receiver is slower, the sender waits more often, and bytes in flight
outgrow the processor's caches.
"""

import math
import mmap
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dieselfs.limits import KIB, SERVER_GONE_S, VERB_SILENCE_S, WAIT_LOOK_S
from dieselfs.net.sockets import receive_with_descriptors, set_keepalive

if TYPE_CHECKING:
    from dieselfs.net.tls import TlsSocket

Buffer = bytes | bytearray | memoryview

_T = TypeVar("_T")

_ARRIVED_BYTES = 64 * KIB
"""A short reply takes one call to the kernel; longer ones go to their destination without a copy."""

_DURATION = struct.Struct("@ll")  # struct timeval: seconds, microseconds


class Wire:
    """Takes over a connected socket. For one thread at a time. Raises OSError, and is unusable after it: TimeoutError
    when no byte has moved for too long (detected up to WAIT_LOOK_S late), ConnectionError when the other side has
    closed its end. An exception from a signal handler may leave a message partly sent or received.
    """

    def __init__(self, sock: "socket.socket | TlsSocket") -> None:
        self._socket = sock
        self._silence_s = self._end_s = math.inf
        self.is_alive: Callable[[], bool] | None = None
        """Asked while no byte has moved for VERB_SILENCE_S, and again after as long; if not, the wait ends."""
        self.gone_s = self._probed_s = SERVER_GONE_S
        """How long the other machine may acknowledge nothing; the second one is what the kernel has been told."""
        # Mapped, because a bytearray touches all pages at once, and most replies need one.
        self._arrived = memoryview(mmap.mmap(-1, _ARRIVED_BYTES, mmap.MAP_PRIVATE))
        self._taken = self._filled = 0  # bounds of the bytes that have arrived and are not taken yet
        sock.settimeout(None)
        seconds, fraction = divmod(WAIT_LOOK_S, 1)
        duration = _DURATION.pack(int(seconds), round(fraction * 1e6))
        for wait in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, wait, duration)

    def limit(self, silence_s: float, total_s: float = math.inf) -> None:
        """Bound each following wait for a byte to move by `silence_s`, and all of them together by `total_s`."""
        self._silence_s = silence_s
        self._end_s = time.monotonic() + total_s

    def hurry(self) -> None:
        """Bound all following waits together by the time that each of them may take."""
        self._end_s = min(self._end_s, time.monotonic() + self._silence_s)

    def send(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            left = memoryview(buffer).cast("B")
            while left:
                left = left[self._moved(self._socket.send, left) :]

    def receive(self, length: int) -> bytearray:
        """The next `length` bytes."""
        received = bytearray(length)
        self.receive_into(memoryview(received))
        return received

    def receive_into(self, destination: memoryview) -> None:
        """Fill `destination` with the next bytes."""
        while destination:
            size = min(len(destination), self._filled - self._taken)
            if size:
                destination[:size] = self._arrived[self._taken : self._taken + size]
                self._taken += size
            elif len(destination) < _ARRIVED_BYTES:
                self._taken, self._filled = 0, self._receive_some(self._arrived, 0)
            else:
                size = self._receive_some(destination, socket.MSG_WAITALL)
            destination = destination[size:]

    def receive_with_descriptors(
        self, length: int, descriptors: list[int], descriptors_max: int
    ) -> bytes | bytearray:
        """As `receive`, over a Unix socket, when no earlier bytes are left. Descriptors that come with the first byte
        are added to `descriptors`; the caller closes them.
        """
        if not isinstance(self._socket, socket.socket):  # no descriptor can come
            return self.receive(length)
        receive = partial(receive_with_descriptors, descriptors_max=descriptors_max)
        first, _ = self._moved(receive, self._socket, length, descriptors)
        if not first:
            raise ConnectionError("it closed the connection")
        return first + self.receive(length - len(first))

    def _receive_some(self, destination: memoryview, flags: int) -> int:
        size = self._moved(self._socket.recv_into, destination, 0, flags)
        if size == 0:
            raise ConnectionError("it closed the connection")
        return size

    def _moved(self, move: Callable[..., _T], *arguments: object) -> _T:
        """What `move` returns, as soon as it moves a byte; it times out every WAIT_LOOK_S."""
        now_s = time.monotonic()
        end_s, asked_s = min(now_s + self._silence_s, self._end_s), now_s + VERB_SILENCE_S
        while now_s < self._end_s:
            try:
                return move(*arguments)
            except (BlockingIOError, TimeoutError) as error:
                now_s = time.monotonic()
                is_kernels = isinstance(error, TimeoutError) and error.errno is not None
                if is_kernels or now_s >= end_s:  # the kernel found the peer dead
                    raise TimeoutError from error
                if self.is_alive is not None and now_s >= asked_s:
                    if not self.is_alive():
                        raise TimeoutError from error
                    asked_s = time.monotonic() + VERB_SILENCE_S
                self.watch()
        raise TimeoutError

    def watch(self) -> None:
        """Tell the kernel how long the other machine may acknowledge nothing. Waits do so once they take long."""
        if self._probed_s != self.gone_s:
            self._probed_s = self.gone_s
            if self._socket.family != socket.AF_UNIX:
                set_keepalive(self._socket, self.gone_s)

    def fileno(self) -> int:
        """The descriptor, to wait for bytes."""
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    @property
    def is_idle(self) -> bool:
        """Whether both ends are open, and no unexpected bytes have arrived."""
        if not self.is_open or self._taken < self._filled:
            return False
        try:
            self._socket.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # end of stream, or bytes that belong to no call

    def close(self) -> None:
        """Idempotent."""
        with suppress(OSError):
            self._socket.close()
