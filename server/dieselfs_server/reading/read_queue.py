"""Merges concurrent reads of one object.

A request that the read in flight covers shares it. All other requests wait, and the next read serves all of them. No
request waits for others to arrive: a read starts as soon as there is a token for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import trio

from dieselfs.arrays import Ranges
from dieselfs.errors import DieselfsError
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.reading.ranges import GAP_BYTES_MAX, covers, cut_ranges, merge_ranges, span_of

Outcome = bytes | DieselfsError


@dataclass(eq=False)
class SharedRead:
    """One read for several requests. `outcomes` has one for each span when it is done, None if it was cancelled."""

    spans: Ranges
    outcomes: list[Outcome] | None = None
    done: trio.Event = field(default_factory=trio.Event)

    def take(self, ranges: Ranges) -> list[memoryview]:
        """The bytes of ranges that the spans cover. Raises the error of a span that they need."""
        assert self.outcomes is not None
        uses = np.bincount(span_of(ranges[ranges[:, 1] > 0], self.spans))
        for span in np.flatnonzero(uses).tolist():
            failure = self.outcomes[span]
            if isinstance(failure, DieselfsError):
                raise type(failure)(*failure.args) from failure
        contents = [outcome if isinstance(outcome, bytes) else b"" for outcome in self.outcomes]
        return cut_ranges(ranges, self.spans, contents)


@dataclass(eq=False)
class _Request:
    ranges: Ranges
    shared: SharedRead | None = None


class ReadMetrics:
    def __init__(self, metrics: Registry) -> None:
        self.requests = metrics.declare(catalogue.READING_REQUESTS)
        self.ranges = metrics.counter("reading.ranges", "Ranges in the requests.")
        self.requested = metrics.counter("reading.requested_bytes", "Bytes in the requested ranges.")
        self.shared = metrics.declare(catalogue.READING_SHARED_REQUESTS)
        self.reads = metrics.counter("reading.store_reads", "Reads of the object store.")
        self.read = metrics.declare(catalogue.READING_STORE_BYTES)
        metrics.gauge(
            "reading.merged", "Ranges that one read of the object store served, on average.", self.merged
        )

    def merged(self) -> float | None:
        """None before the first read."""
        return round(self.ranges.value / self.reads.value, 3) if self.reads.value else None


@dataclass(eq=False)
class ReadQueue:
    """Reads of one object. `_read` blocks, and returns the bytes of one span; `_tokens` limit the reads in flight;
    `_gap_bytes_max` is for `merge_ranges`.

    All state is changed only between checkpoints.
    """

    _read: Callable[[int, int], bytes]
    _tokens: trio.CapacityLimiter
    _threads: trio.CapacityLimiter
    _metrics: ReadMetrics
    _gap_bytes_max: int = GAP_BYTES_MAX

    def __post_init__(self) -> None:
        self._turn = trio.Lock()
        self._waiting: list[_Request] = []
        self._in_flight: SharedRead | None = None

    async def read(self, ranges: Ranges) -> list[memoryview]:
        """The bytes of each range. Raises the store's error for a span that they need.

        If cancelled, a read in flight still finishes in its thread; the next request in the queue reads for the others.
        """
        self._metrics.requests.value += 1
        self._metrics.ranges.value += len(ranges)
        self._metrics.requested.value += int(ranges[:, 1].sum())
        shared = self._in_flight
        if shared is not None and covers(shared.spans, ranges):
            await shared.done.wait()
            if shared.outcomes is not None:
                self._metrics.shared.value += 1
                return shared.take(ranges)
        request = _Request(ranges)
        self._waiting.append(request)
        try:
            async with self._turn:
                if request.shared is None:
                    await self._read_all()
                else:
                    self._metrics.shared.value += 1
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
        assert request.shared is not None
        return request.shared.take(ranges)

    async def _read_all(self) -> None:
        """Make one read for all requests in the queue."""
        async with self._tokens:
            requests, self._waiting = self._waiting, []
            ranges = np.concatenate([request.ranges for request in requests])
            shared = SharedRead(merge_ranges(ranges, self._gap_bytes_max))
            self._in_flight = shared
            for request in requests:
                request.shared = shared
            try:
                shared.outcomes = await trio.to_thread.run_sync(
                    _read_spans, self._read, shared.spans.tolist(), limiter=self._threads
                )
                self._metrics.reads.value += len(shared.outcomes)
                self._metrics.read.value += sum(len(o) for o in shared.outcomes if isinstance(o, bytes))
            finally:
                if shared.outcomes is None:
                    for request in requests:
                        request.shared = None
                    self._waiting = requests + self._waiting
                self._in_flight = None
                shared.done.set()


def _read_spans(read: Callable[[int, int], bytes], spans: list[list[int]]) -> list[Outcome]:
    """Read each span on its own, so that damage in one fails only the requests that need it."""
    outcomes: list[Outcome] = []
    for start, length in spans:
        try:
            outcomes.append(read(start, length))
        except DieselfsError as failure:
            outcomes.append(failure)
    return outcomes
