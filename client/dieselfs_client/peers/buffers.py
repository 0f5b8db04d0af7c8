"""Memory that answers of peers are received into, lent out again and again: new memory costs as much as receiving."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np

from dieselfs.limits import PEER_BATCH_BYTES, PEER_BUFFERS_MAX


def fresh(length_bytes: int) -> memoryview:
    """New memory, whatever is in it."""
    return np.empty(length_bytes, np.uint8).data


class Buffers:
    """Safe to use from many threads. Only what was written to takes memory."""

    def __init__(self, buffer_bytes: int = PEER_BATCH_BYTES, kept_max: int = PEER_BUFFERS_MAX) -> None:
        self._buffer_bytes = buffer_bytes
        self._kept_max = kept_max
        self._lock = Lock()  # guards the one below
        self._idle: list[memoryview] = []

    @contextmanager
    def lent(self, length_bytes: int) -> Iterator[memoryview]:
        """At least so many bytes, until the end of the block; views of them mean nothing afterwards."""
        if length_bytes > self._buffer_bytes:
            yield fresh(length_bytes)
            return
        with self._lock:
            buffer = self._idle.pop() if self._idle else None
        if buffer is None:
            buffer = fresh(self._buffer_bytes)
        try:
            yield buffer
        finally:
            with self._lock:
                if len(self._idle) < self._kept_max:
                    self._idle.append(buffer)
