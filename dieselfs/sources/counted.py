"""Counts what a node fetches, and in how many requests, from a source that may be switched.

Blocks as the source behind it does; safe between threads. No I/O of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dieselfs.metrics import Registry
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.sources.interface import Arrival, Slices, Source


class FetchMetrics:
    """Counts fetches that brought something. Many extents of one chunk are one request. Safe between threads."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._chunks = metrics.counter("fetches.chunks", "Chunks that were fetched whole.")
        self._chunk_bytes = metrics.counter("fetches.chunk_bytes", "Bytes of chunks that were fetched whole.")
        self._requests = metrics.counter("fetches.range_requests", "Requests for extents of a chunk.")
        self._ranges = metrics.counter("fetches.ranges", "Extents that were fetched.")
        self._range_bytes = metrics.counter("fetches.range_bytes", "Bytes of extents that were fetched.")

    def count_chunk(self, length_bytes: int) -> None:
        with self._metrics.lock:
            self._chunks.value += 1
            self._chunk_bytes.value += length_bytes

    def count_ranges(self, ranges: int, length_bytes: int) -> None:
        with self._metrics.lock:
            self._requests.value += 1
            self._ranges.value += ranges
            self._range_bytes.value += length_bytes


class CountedSource:
    """A `Source`. A request ends in the source where it began, which must answer until then."""

    def __init__(self, current: Callable[[], Source], counted: FetchMetrics) -> None:
        """`current` is called for each request, in the thread that makes it."""
        self._current = current
        self._counted = counted

    def fetch_chunk(self, chunk: int) -> bytes | bytearray | memoryview:
        payload = self._current().fetch_chunk(chunk)
        self._counted.count_chunk(len(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self._current().fetch_chunk_into(chunk, destination)
        self._counted.count_chunk(len(destination))

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_shared_plan: bool = False
    ) -> Iterator[Arrival]:
        for arrival in self._current().fetch_many(wanted, is_shared_plan):
            for result in arrival.values():
                if isinstance(result, Slices):
                    self._counted.count_ranges(len(result), sum(result.lengths))
            yield arrival

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self._current().together(chunks)
