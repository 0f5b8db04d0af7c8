"""Processes that fetch and verify whole chunks for the daemon of a mount, beside its interpreter. This module forks.

    daemon      order: chunk, and its place and length in the buffer pool; or that a segment is wanted
    worker      fetches the chunk into that memory; reply: whether it is there, seconds spent by cause, and the
                descriptor of a segment

A worker has the source without a job: the disk of the node, and servers. What it counts there is in memory that it
shares with the daemon. Segments are for the node cache of a job.

The *forker* is forked before the daemon has threads. It forks a worker when all others are busy, or one has died. A
worker that fails, dies or hangs costs no read: the daemon then fetches the chunk itself, and reports the error.
"""

import logging
import mmap
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from threading import Lock, Semaphore
from typing import NoReturn

from dieselfs.chunk.segment import Segment
from dieselfs.disk.write_behind import DISK_CLOSE_TIMEOUT_S
from dieselfs.errors import EXIT_BUG, EXIT_OK, DieselfsError, Unavailable
from dieselfs.limits import FETCHES_AT_ONCE_MAX, READ_TIMEOUT_S
from dieselfs.net.sockets import receive_with_descriptors, rights
from dieselfs.sources.interface import Arrival, Source, Wanted
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry.stalls import CAUSES, METER
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.supervision.status import name_process

WORKER_ORDER_S = 2 * READ_TIMEOUT_S
"""A worker that takes longer for one chunk is killed."""
WORKER_END_S = 1.0
"""A killed worker is gone after this time; else its memory is not used again."""
WORKER_IDLE_WAIT_S = 0.1
"""The daemon fetches a chunk itself if no worker becomes free within this time."""
FORKER_SEND_S = 1.0

_ORDER = struct.Struct("=QQQ")
_SEGMENT = (1 << 64) - 1  # in an order, in place of a place in the pool
_REPLY = struct.Struct(f"=?{len(CAUSES)}d")
_BIRTH = struct.Struct("=QQ")
_PID = struct.Struct("=i")

Begin = Callable[[int, int | None], ServerSource]
"""Makes the source of a worker, in it: `number`, from 1 on, that of a worker that has ended again; `hold`, as
`ServerSource.hold` in the daemon."""

_log = logging.getLogger(__name__)


def fetches_at_once(workers: int) -> int:
    """Limit of fetches in flight, of which half are prefetches."""
    return max(FETCHES_AT_ONCE_MAX, 2 * workers)


def start_forker(source: Begin, detach: Callable[[], None]) -> socket.socket:
    """Fork the forker of this process, which must have one thread; returns the socket for `FetchWorkers`.

    `source` makes the source of a worker; `detach` closes what the forker must not hold. It ends with the socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ours
    code = EXIT_BUG
    try:
        ours.close()
        detach()
        name_process("dieselfs-forker")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects its children
        _fork_workers(theirs, source)
        code = EXIT_OK
    except BaseException:  # any error: the process must not continue as the daemon
        _log.exception("the forker of fetch workers ended by an unexpected error")
    finally:
        os._exit(code)


def _fork_workers(channel: socket.socket, source: Begin) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _BIRTH.size, 3)
        if not message:
            return
        end, pool, *hold = descriptors
        if not os.fork():
            channel.close()
            number, pool_bytes = _BIRTH.unpack(message)
            _be_worker(end, pool, pool_bytes, partial(source, number, hold[0] if hold else None))
        for each in descriptors:
            os.close(each)


def _be_worker(end: int, pool: int, pool_bytes: int, open_source: Callable[[], ServerSource]) -> NoReturn:
    code = EXIT_BUG
    try:
        name_process("dieselfs-fetch")
        memory = memoryview(mmap.mmap(pool, pool_bytes))
        source = open_source()
        with socket.socket(fileno=end) as orders:
            orders.send(_PID.pack(os.getpid()))
            _work(orders, source, memory)
        source.close()
        code = EXIT_OK
    except ConnectionError:  # the daemon has ended
        code = EXIT_OK
    except BaseException:  # as in the forker
        _log.exception("a fetch worker ended by an unexpected error")
    finally:
        os._exit(code)


def _work(orders: socket.socket, source: ServerSource, memory: memoryview) -> None:
    """Carry out orders until the daemon has closed the socket."""
    while order := orders.recv(_ORDER.size):
        chunk, place, length = _ORDER.unpack(order)
        before_s = METER.spent()
        is_fetched, segment = True, None
        try:
            if place == _SEGMENT:
                segment = source.fetch_segment(chunk)
            else:
                source.fetch_chunk_into(chunk, memory[place : place + length])
        except DieselfsError:  # the daemon meets it again
            is_fetched = False
        reply = _REPLY.pack(is_fetched, *(METER.spent() - before_s))
        orders.sendmsg([reply], [] if segment is None else rights(segment.descriptor))
        if segment is not None:
            segment.close()


class FetchWorkers:
    """The workers of a daemon, `count` at most. Safe to use from several threads."""

    def __init__(
        self, forker: socket.socket, count: int, hold: Callable[[], int | None] = lambda: None
    ) -> None:
        """`hold`: as `ServerSource.hold`."""
        forker.settimeout(FORKER_SEND_S)
        self._forker, self._hold = forker, hold
        self._pool: BufferPool | None = None
        self.count = count
        self._free = Semaphore(count)
        self._lock = Lock()  # guards the ones below, and is held while the forker is asked
        self._idle: list[_Worker] = []
        self._numbers = list(range(count, 0, -1))  # of workers that are not there
        self._is_over = False  # there is no forker
        self._abandoned: list[memoryview] = []

    def use(self, pool: BufferPool) -> None:
        """Chunks are in this pool from now on; idle workers of another one end."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._pool = pool
        for worker in idle:
            self._end(worker)

    def fetch(self, chunk: int, destination: memoryview) -> bool:
        """Whether a worker has fetched a chunk into memory of the pool, verified. If not, the caller fetches it.

        Raises Unavailable if a worker hangs, and may still write into the memory.
        """
        place = None if self._pool is None else self._pool.place(destination)
        return place is not None and self._ordered(chunk, place, destination, []) is True

    def fetch_segment(self, reader: ServerSource, chunk: int) -> Segment:
        """A chunk, verified and sealed, from a worker, else from `reader`. Raises as that, and as `Segment.adopt`."""
        descriptors: list[int] = []
        self._ordered(chunk, _SEGMENT, None, descriptors)
        if not descriptors:
            return reader.fetch_segment(chunk)
        return Segment.adopt(descriptors[0], reader.snapshot.chunk_payload_length(chunk))

    def _ordered(
        self, chunk: int, place: int, destination: memoryview | None, descriptors: list[int]
    ) -> bool:
        """Whether a worker has fetched a chunk. Descriptors of its reply are appended, whose owner closes them."""
        if not self._free.acquire(timeout=WORKER_IDLE_WAIT_S):
            return False
        try:
            worker = self._taken()
            if worker is None:
                return False
            length = 0 if destination is None else len(destination)
            try:
                is_fetched, *spent_s = worker.fetch(chunk, place, length, descriptors)
            except OSError:
                if not self._end(worker) and destination is not None:
                    self._abandoned.append(destination)
                    raise Unavailable("a fetch worker hangs") from None
                return False
            with self._lock:
                self._idle.append(worker)
        finally:
            self._free.release()
        for cause, seconds in zip(CAUSES, spent_s, strict=True):
            METER.add(cause, seconds)
        return is_fetched

    def _taken(self) -> "_Worker | None":
        """An idle worker, or a new one; None if the forker has died or hangs."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        hold = self._hold()
        with self._lock, ExitStack() as passed:
            if hold is not None:
                passed.callback(os.close, hold)
            if self._is_over or self._pool is None or not self._numbers:
                return None
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                descriptors = [theirs.fileno(), self._pool.descriptor, *([] if hold is None else [hold])]
                try:
                    birth = _BIRTH.pack(self._numbers[-1], self._pool.length_bytes)
                    socket.send_fds(self._forker, [birth], descriptors)
                except OSError as error:
                    _log.warning("no more fetch workers: the process that forks them has ended: %s", error)
                    ours.close()
                    self._is_over = True
                    return None
            return _Worker(ours, self._numbers.pop())

    def _end(self, worker: "_Worker") -> bool:
        """Kill a worker; returns whether it has ended, as far as is known. Its number is used again then."""
        is_ended = worker.end()
        if is_ended:
            with self._lock:
                self._numbers.append(worker.number)
        return is_ended

    def close(self) -> None:
        """End the workers that are idle, once they have written what waits for the disk (DISK_CLOSE_TIMEOUT_S at most),
        and the forker; others end with their chunk.
        """
        self._forker.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.dismiss()
        until_s = time.monotonic() + DISK_CLOSE_TIMEOUT_S
        for worker in idle:
            worker.end(max(until_s - time.monotonic(), 0.0))


class WorkerSource:
    """As the `current` source, which is asked for each request; workers fetch whole chunks."""

    def __init__(self, current: Callable[[], Source], workers: FetchWorkers) -> None:
        self._current = current
        self._workers = workers

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        if not self._workers.fetch(chunk, destination):
            self._current().fetch_chunk_into(chunk, destination)

    def fetch_chunk(self, chunk: int) -> bytes | bytearray | memoryview:
        return self._current().fetch_chunk(chunk)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        return self._current().fetch_many(wanted)

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        return self._current().fetch_blocks(chunk, first, end)

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self._current().together(chunks)


class _Worker:
    """One worker, used by one thread at a time."""

    def __init__(self, orders: socket.socket, number: int) -> None:
        orders.settimeout(WORKER_ORDER_S)
        self._orders = orders
        self._pidfd: int | None = None
        self.number = number

    def fetch(
        self, chunk: int, place: int, length: int, descriptors: list[int]
    ) -> tuple[bool, *tuple[float, ...]]:
        """The reply to an order. Raises OSError if the worker has died, or does not answer in time."""
        if self._pidfd is None:
            self._pidfd = os.pidfd_open(*_PID.unpack(self._received(_PID.size, [])))
        self._orders.send(_ORDER.pack(chunk, place, length))
        return _REPLY.unpack(self._received(_REPLY.size, descriptors))

    def _received(self, length: int, descriptors: list[int]) -> bytes:
        message, _ = receive_with_descriptors(self._orders, length, descriptors)
        if not message:
            raise ConnectionError("the worker has ended")
        return message

    def dismiss(self) -> None:
        """Let it end by itself."""
        self._orders.close()

    def end(self, patience_s: float = 0.0) -> bool:
        """Kill it after this time; returns whether it has ended, as far as is known."""
        self._orders.close()
        if self._pidfd is None:  # it has got no order
            return True
        pidfd, self._pidfd = self._pidfd, None
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if poll.poll(patience_s * 1000):
                return True
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return bool(poll.poll(WORKER_END_S * 1000))
        finally:
            os.close(pidfd)
