"""The bytes of a connection, out and in, each wait for them bounded. This module waits for sockets.

The kernel does the waiting: one call fills a large piece of memory, however often more has to come for it, and comes
back now and then only for us to see how long nothing has moved. To be told of all that arrives costs both ends more:
who receives is slower, so that who sends waits more often, and what is on its way outgrows the processor's caches.
"""

import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from dieselfs.limits import KIB, WAIT_LOOK_S

Buffer = bytes | bytearray | memoryview

_T = TypeVar("_T")

_ARRIVED_BYTES = 64 * KIB
"""A short reply comes with one call to the kernel; what is longer than this goes to its place without a copy."""

_DESCRIPTOR = struct.Struct("i")
"""One at most comes with a reply: there is no room for more, which the kernel closes."""

_DURATION = struct.Struct("@ll")  # struct timeval: seconds, microseconds


class Wire:
    """Takes over a connected socket. For one thread at a time; raises OSError, and is of no further use after that:
    TimeoutError when no byte has moved for too long (seen up to WAIT_LOOK_S late), ConnectionError when the other side
    has closed its end. Another exception, by a signal, may leave part of something sent or received.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._is_encrypted = isinstance(sock, ssl.SSLSocket)
        self._fill = 0 if self._is_encrypted else socket.MSG_WAITALL
        self._silence_s = self._end_s = math.inf
        self._arrived = memoryview(bytearray(_ARRIVED_BYTES))
        self._taken = self._filled = 0  # what has arrived and is not taken yet lies between
        if self._is_encrypted:
            sock.settimeout(WAIT_LOOK_S)
        else:
            sock.settimeout(None)
            seconds, fraction = divmod(WAIT_LOOK_S, 1)
            duration = _DURATION.pack(int(seconds), round(fraction * 1e6))
            for wait in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, wait, duration)

    def limit(self, silence_s: float, total_s: float = math.inf) -> None:
        """From now on, no wait for a byte to move is longer than `silence_s`, and all of them end in `total_s`."""
        self._silence_s = silence_s
        self._end_s = time.monotonic() + total_s

    def send(self, buffers: Sequence[Buffer]) -> None:
        """All of these, one behind the other."""
        for buffer in buffers:
            left = memoryview(buffer).cast("B")
            while left:
                left = left[self._moved(self._socket.send, left) :]

    def receive(self, length: int) -> bytearray:
        """The next bytes, so many."""
        received = bytearray(length)
        self.receive_into(memoryview(received))
        return received

    def receive_into(self, destination: memoryview) -> None:
        """The next bytes, as many as there is room for."""
        while destination:
            size = min(len(destination), self._filled - self._taken)
            if size:
                destination[:size] = self._arrived[self._taken : self._taken + size]
                self._taken += size
            elif len(destination) < _ARRIVED_BYTES:
                self._taken, self._filled = 0, self._receive_some(self._arrived, 0)
            else:
                size = self._receive_some(destination, self._fill)
            destination = destination[size:]

    def receive_with_descriptor(self, length: int, descriptors: list[int]) -> bytes | bytearray:
        """As `receive`, over a Unix socket, with nothing left of what came before; a descriptor that comes with the
        first byte is added to `descriptors`, whose owner closes it.
        """

        def receive() -> bytes:
            # Not socket.recv_fds, which drops the flags that it is given (CPython 3.11).
            first, extras, _, _ = self._socket.recvmsg(
                length, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, rights in extras:
                is_right = (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                if is_right and len(rights) == _DESCRIPTOR.size:
                    descriptors.extend(_DESCRIPTOR.unpack(rights))
            return first

        first = self._moved(receive)
        if not first:
            raise ConnectionError("it closed the connection")
        return first + self.receive(length - len(first))

    def _receive_some(self, destination: memoryview, flags: int) -> int:
        size = self._moved(self._socket.recv_into, destination, 0, flags)
        if size == 0:
            raise ConnectionError("it closed the connection")
        return size

    def _moved(self, move: Callable[..., _T], *arguments: object) -> _T:
        """What `move` returns, as soon as it moves a byte: it gives up every WAIT_LOOK_S."""
        now_s = time.monotonic()
        end_s = min(now_s + self._silence_s, self._end_s)
        while now_s < self._end_s:
            try:
                return move(*arguments)
            except (BlockingIOError, TimeoutError) as error:
                now_s = time.monotonic()
                is_kernels = isinstance(error, TimeoutError) and error.errno is not None
                if is_kernels or now_s >= end_s:  # it has found out that nobody is there
                    raise TimeoutError from error
        raise TimeoutError

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    @property
    def is_idle(self) -> bool:
        """Whether it is open at both ends, and nothing has come that nobody has taken."""
        if not self.is_open or self._taken < self._filled:
            return False
        try:
            if self._is_encrypted:
                self._socket.settimeout(0)
                self._socket.recv(1)
            else:
                self._socket.recv(1, socket.MSG_DONTWAIT)
        except (BlockingIOError, ssl.SSLWantReadError):
            if self._is_encrypted:
                self._socket.settimeout(WAIT_LOOK_S)
            return True
        except OSError:
            return False
        return False  # the end, or bytes that belong to no call

    def close(self) -> None:
        """May be called again."""
        with suppress(OSError):
            self._socket.close()
