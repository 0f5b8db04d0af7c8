"""A bounded queue of chunks to be written, and its thread. This module runs a thread."""

import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple

from dieselfs.limits import MIB

DISK_QUEUE_BYTES = 32 * MIB
"""Memory for chunks that wait to be written; the daemon's own memory, not a part of the mount's."""
DISK_QUEUE_WAIT_S = 0.2
"""A fetch waits this long for room in the queue; then its chunk is not stored."""
DISK_WRITE_TIMEOUT_S = 5.0
"""Nothing is put while one chunk takes longer than this: the disk hangs, and each fetch would wait for the queue."""
DISK_CLOSE_TIMEOUT_S = 5.0
"""Chunks in the queue are written for this long at the end."""


class UnwrittenPayload(NamedTuple):
    """A payload, plain or packed, at the beginning of a `chunk_file.new_buffer`. Not changed once it is put."""

    buffer: memoryview
    length_bytes: int


class WriteBehind:
    """Thread-safe. The functions are called in the thread, one at a time, in the order of the requests; they do not
    raise. A chunk that is removed and put again is removed first.
    """

    def __init__(
        self,
        write: Callable[[bytes, UnwrittenPayload], None],
        remove: Callable[[bytes], None],
        begin: Callable[[], object],
        end: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        queue_bytes: int = DISK_QUEUE_BYTES,
    ) -> None:
        """`begin` and `end` are the first and the last call."""
        self._write, self._remove, self._begin, self._end = write, remove, begin, end
        self._changed = Condition()  # guards all below
        self._queue: deque[tuple[bytes, UnwrittenPayload | None]] = deque()  # None: to be removed
        self._waiting: dict[bytes, UnwrittenPayload] = {}  # to be written
        self._removing: set[bytes] = set()
        self._bytes, self._bytes_max = 0, queue_bytes
        self._clock = clock
        self._is_busy = True
        self._busy_since_s = clock()
        self._is_closed = False
        self._thread = Thread(target=self._run, name="disk-writer", daemon=True)
        self._thread.start()

    def waiting(self, chunk_id: bytes) -> memoryview | None:
        """The payload of a chunk that is not written yet."""
        with self._changed:
            payload = self._waiting.get(chunk_id)
        return None if payload is None else payload.buffer[: payload.length_bytes]

    def is_removing(self, chunk_id: bytes) -> bool:
        """Whether a chunk is to be removed, and still there."""
        with self._changed:
            return chunk_id in self._removing

    @property
    def is_stalled(self) -> bool:
        """Whether the function that runs has taken more than DISK_WRITE_TIMEOUT_S."""
        with self._changed:
            return self._is_busy and self._clock() - self._busy_since_s > DISK_WRITE_TIMEOUT_S

    def put(self, chunk_id: bytes, payload: UnwrittenPayload) -> bool:
        """Write a chunk soon; False if the queue was full for DISK_QUEUE_WAIT_S."""
        length_bytes = payload.length_bytes
        with self._changed:
            if chunk_id in self._waiting:
                return True
            has_room = self._changed.wait_for(
                lambda: not self._bytes or self._bytes + length_bytes <= self._bytes_max, DISK_QUEUE_WAIT_S
            )
            if not has_room or self._is_closed:
                return False
            self._waiting[chunk_id] = payload
            self._bytes += length_bytes
            self._queue.append((chunk_id, payload))
            self._changed.notify_all()
            return True

    def remove(self, chunk_id: bytes) -> None:
        """Remove a chunk soon."""
        with self._changed:
            self._removing.add(chunk_id)
            self._queue.append((chunk_id, None))
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is done; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._is_busy, timeout_s)

    def close(self) -> None:
        """Do what is in the queue, for DISK_CLOSE_TIMEOUT_S at most, and end the thread."""
        self.flush(DISK_CLOSE_TIMEOUT_S)
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join(DISK_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        self._begin()
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if not self._queue:
                    break
                chunk_id, payload = self._queue.popleft()
                self._is_busy, self._busy_since_s = True, self._clock()
            if payload is not None:
                self._write(chunk_id, payload)
            else:
                self._remove(chunk_id)
            with self._changed:
                if payload is not None:
                    del self._waiting[chunk_id]
                    self._bytes -= payload.length_bytes
                else:
                    self._removing.discard(chunk_id)
        self._end()
