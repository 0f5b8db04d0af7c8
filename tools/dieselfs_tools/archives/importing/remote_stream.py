"""A remote file as a stream, which threads read ahead in parts. This module starts threads."""

import io
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dieselfs.bucket.client import PART_BYTES, PARTS_AT_ONCE_MAX

FIRST_BYTES = 1 << 20
"""What is read first, to recognize the format. Reading ahead begins behind it."""


class RemoteStream(io.RawIOBase):
    """One version of a file, from its begin. Holds up to PARTS_AT_ONCE_MAX parts of PART_BYTES."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size_bytes: int,
        mtime_ns: int,
        keep: Callable[[int, bytes], None] = lambda begin, part: None,
    ) -> None:
        """`read` returns the bytes from a place to before another; any thread calls it, and what it raises, reading
        raises. `keep` gets each part, and where it begins, when the stream comes to it.
        """
        self.mtime_ns = mtime_ns
        self._read = read
        self._size_bytes = size_bytes
        self._keep = keep
        self._threads = ThreadPoolExecutor(PARTS_AT_ONCE_MAX, "dieselfs-import")
        self._parts = self._read_ahead()
        self._part = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if not self._part:
            begin, part = next(self._parts, (0, b""))
            if part:
                self._keep(begin, part)
            self._part = memoryview(part)
        length = min(len(view), len(self._part))
        view[:length] = self._part[:length]
        self._part = self._part[length:]
        return length

    def _read_ahead(self) -> Iterator[tuple[int, bytes]]:
        position = min(FIRST_BYTES, self._size_bytes)
        if position:
            yield 0, self._read(0, position)
        pending: deque[tuple[int, Future[bytes]]] = deque()
        while pending or position < self._size_bytes:
            while position < self._size_bytes and len(pending) < PARTS_AT_ONCE_MAX:
                end = min(position + PART_BYTES, self._size_bytes)
                pending.append((position, self._threads.submit(self._read, position, end)))
                position = end
            begin, part = pending.popleft()
            yield begin, part.result()

    def close(self) -> None:
        """Requests that run end by their timeout."""
        if not self.closed:
            self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()
