"""Memory beside a pipe of messages: their contents are copied twice there, and four times through the pipe. This module
maps memory.

    tail (u64)   ...   contents, in a ring

The writer appends a content while there is room, and its message has the position. Else it sends the content through
the pipe, which makes it wait. The reader copies each content, and moves the tail behind it. It never reads the tail,
and the size of the memory is sealed, so all that a writer can do to its reader is to send other bytes.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dieselfs.errors import Damaged
from dieselfs.limits import KIB, MIB

RING_BYTES = 4 * MIB
CONTENT_BYTES_MIN = 16 * KIB
"""Smaller contents go through the pipe, with others."""
_START = mmap.PAGESIZE


class ContentRing:
    """One end: it either appends or takes."""

    def __init__(self, descriptor: int) -> None:
        """Maps the memory of `ring_memory`."""
        self._memory = memoryview(mmap.mmap(descriptor, _START + RING_BYTES))
        self._tail = self._memory[:8].cast("Q")  # written by one instruction
        self._contents = self._memory[_START:]
        self._end = 0  # of the contents so far

    def append(self, content: bytes) -> int | None:
        """The position of a content that was copied here, None if it has to go through the pipe."""
        size = len(content)
        begin = self._end
        if begin % RING_BYTES + size > RING_BYTES:  # in one piece
            begin += RING_BYTES - begin % RING_BYTES
        if size < CONTENT_BYTES_MIN or begin + size - self._tail[0] > RING_BYTES:
            return None
        self._contents[begin % RING_BYTES : begin % RING_BYTES + size] = content
        self._end = begin + size
        return begin

    def take(self, position: int, size: int) -> bytes:
        """A copy of the content there, whose memory the writer may use again. Raises Damaged."""
        begin = position % RING_BYTES
        if begin + size > RING_BYTES or position + size >= 1 << 64:
            raise Damaged("its reader sends content from outside of its memory")
        content = bytes(self._contents[begin : begin + size])
        self._tail[0] = position + size
        return content


@contextmanager
def ring_memory() -> Iterator[int]:
    """The descriptor of new memory for both ends, until the end of the block. Raises OSError."""
    descriptor = os.memfd_create("dieselfs-contents", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _START + RING_BYTES)
        fcntl.fcntl(
            descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        yield descriptor
    finally:
        os.close(descriptor)
