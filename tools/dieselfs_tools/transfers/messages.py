"""Messages between a command and its processes: two lengths, a list in msgpack, and content, or its place beside the
pipe (`content_ring.py`). This module reads and writes pipes and sockets.
"""

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from dieselfs.errors import Damaged
from dieselfs.limits import KIB, MIB
from dieselfs_tools.transfers.content_ring import ContentRing

MESSAGE_BYTES_MAX = 8 * MIB
"""A message without its content."""
PART_BYTES_MAX = 1 * MIB
"""The content of one message. That of a larger file is sent in parts, when it is asked for."""
SENT_BYTES = 256 * KIB
SENT_PIECES = 256
"""Messages are sent when so much has gathered, or when their sender waits."""
READ_BYTES = 64 * KIB
"""Read from the pipe at once, unless the rest of one content is more."""

_HEAD = struct.Struct("<IIQ")
"""The two lengths, and the position of the content in the ring + 1; 0: the content follows."""


def packed(message: Sequence[Any]) -> bytes:
    content: bytes = msgpack.packb(message, unicode_errors="surrogateescape")
    return content


def unpacked(content: bytes) -> list[Any]:
    """Raises Damaged."""
    try:
        message = msgpack.unpackb(content, unicode_errors="surrogateescape")
        if isinstance(message, list) and message:
            return message
    except (ValueError, msgpack.UnpackException, RecursionError):
        pass
    raise Damaged("its reader sends what is no message")


class Writer:
    """The reader's end of the pipe."""

    def __init__(self, pipe: int, ring: ContentRing | None = None) -> None:
        self._pipe = pipe
        self._ring = ring
        self._pieces: list[bytes] = []
        self._bytes = 0

    def put(self, *message: Any, content: bytes = b"") -> None:
        """Send a message, now or by the next `flush`. Raises BrokenPipeError if nobody reads them."""
        head = packed(message)
        position = None if self._ring is None else self._ring.append(content)
        if position is None:
            self._pieces += (_HEAD.pack(len(head), len(content), 0), head, content)
        else:
            self._pieces += (_HEAD.pack(len(head), len(content), position + 1), head)
        self._bytes += len(head) + len(content)
        if self._bytes >= SENT_BYTES or len(self._pieces) >= SENT_PIECES:
            self.flush()

    def flush(self) -> None:
        """Send what has gathered."""
        pieces: Sequence[bytes | memoryview] = self._pieces
        total = sum(map(len, pieces))
        while total:
            sent = os.writev(self._pipe, pieces)
            total -= sent
            if total:
                pieces = [memoryview(b"".join(pieces))[sent:]]
        self._pieces, self._bytes = [], 0


class Reader:
    """The other end of the pipe. What comes through it is not believed."""

    def __init__(self, pipe: int, ring: ContentRing | None = None) -> None:
        self.pipe = pipe
        self._ring = ring
        self._buffer = b""
        self._taken = 0  # bytes of it

    @property
    def has_more(self) -> bool:
        """Whether a message has arrived with the last one."""
        return self._taken < len(self._buffer)

    def receive(self, wait: Callable[[], None]) -> tuple[list[Any], bytes] | None:
        """The next message and its content, None at the end. `wait` returns when there are bytes. Raises Damaged if
        there is no message in them.
        """
        if not self.has_more:
            wait()
        if not self._has(_HEAD.size):
            return None
        length, content_length, place = _HEAD.unpack_from(self._buffer, self._taken)
        if length > MESSAGE_BYTES_MAX or content_length > PART_BYTES_MAX:
            raise Damaged("its reader sends a message that is too long")
        if not self._has(_HEAD.size + length):
            return None
        begin = self._taken + _HEAD.size
        message = self._buffer[begin : begin + length]
        self._taken = begin + length
        if place:
            if self._ring is None:
                raise Damaged("its reader sends content from nowhere")
            return unpacked(message), self._ring.take(place - 1, content_length)
        content = self._take(content_length)
        return None if content is None else (unpacked(message), content)

    def _has(self, size: int) -> bool:
        """Whether `size` bytes arrive before the end of the pipe. Blocks: a message is written at once."""
        missing = size - (len(self._buffer) - self._taken)
        if missing <= 0:
            return True
        parts = [self._buffer[self._taken :]]
        while missing > 0 and (part := os.read(self.pipe, READ_BYTES)):
            parts.append(part)
            missing -= len(part)
        self._buffer, self._taken = b"".join(parts), 0
        return missing <= 0

    def _take(self, size: int) -> bytes | None:
        """The next `size` bytes, None if the pipe ends before. Those that have not arrived are copied once."""
        end = self._taken + size
        taken, missing = self._buffer[self._taken : end], end - len(self._buffer)
        self._taken = end
        if missing <= 0:
            return taken
        parts = [memoryview(taken)]
        while missing > 0 and (part := os.read(self.pipe, max(missing, READ_BYTES))):
            parts.append(memoryview(part)[:missing])
            self._buffer, self._taken = part, len(parts[-1])
            missing -= len(parts[-1])
        return b"".join(parts) if missing == 0 else None
