"""Concurrent reads of one object by many tasks become one: who asks while a read is under way shares it, if it covers
what they want, or is taken along by the next, together with all others who wait.

Nobody waits in the hope of company: a read starts as soon as there is a token for it. What gathers meanwhile is merged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import trio

from dieselfs.errors import DieselfsError
from dieselfs_server.ranges import Ranges, covers, cut_ranges, homes_of, merge_ranges

Outcome = bytes | DieselfsError


@dataclass(eq=False)
class Flight:
    """One read, for all who are aboard. `outcomes`: one for each span once it has landed, None if it was cancelled."""

    spans: Ranges
    outcomes: list[Outcome] | None = None
    landed: trio.Event = field(default_factory=trio.Event)

    def take(self, ranges: Ranges) -> list[memoryview]:
        """The bytes of ranges that the spans cover. Raises what was raised for a span that they lie in."""
        assert self.outcomes is not None
        wanted = np.bincount(homes_of(ranges[ranges[:, 1] > 0], self.spans))
        for home in np.flatnonzero(wanted).tolist():
            failure = self.outcomes[home]
            if isinstance(failure, DieselfsError):
                raise type(failure)(*failure.args) from failure
        contents = [outcome if isinstance(outcome, bytes) else b"" for outcome in self.outcomes]
        return cut_ranges(ranges, self.spans, contents)


@dataclass(eq=False)
class _Request:
    ranges: Ranges
    flight: Flight | None = None


@dataclass
class ReadCounters:
    """Since the start: what was asked for, and what it took. `shared` requests came along with another's read."""

    requests: int = 0
    ranges: int = 0
    bytes_asked: int = 0
    shared: int = 0
    reads: int = 0
    bytes_read: int = 0


class ReadQueue:
    """Reads of one object. `read` blocks, and gives the bytes of one span; `tokens` bound how many reads are under way.

    All state is changed between checkpoints only.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        tokens: trio.CapacityLimiter,
        threads: trio.CapacityLimiter,
        counters: ReadCounters,
    ) -> None:
        self._read = read
        self._tokens = tokens
        self._threads = threads
        self._counters = counters
        self._turn = trio.Lock()
        self._waiting: list[_Request] = []
        self._flight: Flight | None = None
        self.users = 0

    async def read(self, ranges: Ranges) -> list[memoryview]:
        """The bytes of each range. Raises what the store raises for a span that they lie in.

        If cancelled, a read that is under way goes on in its thread, for the others; one that has not begun is begun by
        the next who waits.
        """
        self._counters.requests += 1
        self._counters.ranges += len(ranges)
        self._counters.bytes_asked += int(ranges[:, 1].sum())
        flight = self._flight
        if flight is not None and covers(flight.spans, ranges):
            await flight.landed.wait()
            if flight.outcomes is not None:
                self._counters.shared += 1
                return flight.take(ranges)
        request = _Request(ranges)
        self._waiting.append(request)
        try:
            async with self._turn:
                if request.flight is None:
                    await self._fly()
                else:
                    self._counters.shared += 1
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
        assert request.flight is not None
        return request.flight.take(ranges)

    async def _fly(self) -> None:
        """Make one read for all who wait."""
        async with self._tokens:
            passengers, self._waiting = self._waiting, []
            flight = Flight(merge_ranges(np.concatenate([request.ranges for request in passengers])))
            self._flight = flight
            for request in passengers:
                request.flight = flight
            try:
                flight.outcomes = await trio.to_thread.run_sync(
                    _read_spans, self._read, flight.spans.tolist(), limiter=self._threads
                )
                self._counters.reads += len(flight.outcomes)
                self._counters.bytes_read += sum(len(o) for o in flight.outcomes if isinstance(o, bytes))
            finally:
                if flight.outcomes is None:
                    for request in passengers:
                        request.flight = None
                    self._waiting = passengers + self._waiting
                self._flight = None
                flight.landed.set()


def _read_spans(read: Callable[[int, int], bytes], spans: list[list[int]]) -> list[Outcome]:
    """Each span by itself, so that damage in one fails only who wants it."""
    outcomes: list[Outcome] = []
    for start, length in spans:
        try:
            outcomes.append(read(start, length))
        except DieselfsError as failure:
            outcomes.append(failure)
    return outcomes
