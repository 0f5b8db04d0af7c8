"""The interface to sources of chunks of a snapshot: a server, or the nodes of a job; and a source that counts. No I/O.

All methods block, may be called from many threads at once, raise DieselfsError, and return verified bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from dieselfs.errors import DieselfsError
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Metric, Registry


@dataclass(frozen=True, eq=False, slots=True)
class Slices:
    """Bytes of extents, not copied: extent `i` begins at `starts[i]` of `content`.

    Each item is a view, which holds all of `content` in memory.
    """

    content: memoryview
    starts: Sequence[int]
    lengths: Sequence[int]

    @classmethod
    def of_payload(cls, payload: memoryview, extents: Sequence[ExtentRef] = ()) -> "Slices":
        """Extents in the payload of their chunk; without extents, the whole of it."""
        if not extents:
            return cls(payload, [0], [len(payload)])
        return cls(payload, [extent.offset for extent in extents], [extent.length for extent in extents])

    @classmethod
    def joined(cls, content: memoryview, extents: Sequence[ExtentRef]) -> "Slices":
        """Extents that are stored one after the other in `content`."""
        lengths = [extent.length for extent in extents]
        return cls(content, [0, *accumulate(lengths[:-1])] if lengths else [], lengths)

    def split(self, counts: Iterable[int]) -> "Iterator[Slices]":
        """The same extents, which are `joined`, in parts with these numbers of extents: each has its own bytes only, as
        the page cache has room for those of one chunk.
        """
        first = start = 0
        for count in counts:
            lengths = self.lengths[first : first + count]
            starts = [each - start for each in self.starts[first : first + count]]
            end = start + sum(lengths)
            yield Slices(self.content[start:end], starts, lengths)
            first, start = first + count, end

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[memoryview]:
        content, places = self.content, zip(self.starts, self.lengths, strict=True)
        return iter([content[start : start + length] for start, length in places])

    def __getitem__(self, number: int) -> memoryview:
        start = self.starts[number]
        return self.content[start : start + self.lengths[number]]


class Wanted(dict[int, Sequence[ExtentRef]]):
    """The extents of a request, by the chunk that they are in.

    `is_shared_plan`: other processes of the job follow the same plan and will soon request the rest of these chunks, so
    a job loads them whole into its memory.
    """

    def __init__(
        self, extents: Mapping[int, Sequence[ExtentRef]] | None = None, is_shared_plan: bool = False
    ) -> None:
        super().__init__(extents or {})
        self.is_shared_plan = is_shared_plan

    def of(self, chunks: Iterable[int]) -> "Wanted":
        """The part of the request that is for these chunks."""
        return Wanted({chunk: self[chunk] for chunk in chunks}, self.is_shared_plan)

    def length_bytes(self, chunk: int) -> int:
        """Bytes wanted of a chunk."""
        return sum([extent.length for extent in self[chunk]])


ChunkResult = Slices | DieselfsError
"""The extents of a chunk in the requested order, or the error."""

Arrival = dict[int, ChunkResult]
"""The results of one reply, by chunk."""


class Source(Protocol):
    """Whole chunks, and extents of many chunks in as few requests as possible."""

    def fetch_chunk(self, chunk: int) -> bytes | bytearray | memoryview:
        """The payload of a chunk (an index into the snapshot's table). Raises Damaged unless its digest matches."""
        ...

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """As `fetch_chunk`, into memory of the payload's length, whose content is undefined if this raises."""
        ...

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        """The bytes of extents of many chunks, each chunk once, in the order of arrival; one item for each reply.

        The first `next` sends the requests; closing the iterator abandons the rest.
        """
        ...

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        """The blocks of a payload from number `first` up to `end`, joined. Raises Damaged unless their checksums match.

        If the server has kept no checksums of its blocks, the first request makes it read and verify the whole chunk.
        """
        ...

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """The same chunks, grouped by the request that will fetch their extents. Sends nothing."""
        ...


def fetch_extent(source: Source, extent: ExtentRef) -> memoryview:
    """The bytes of one extent. Raises Damaged unless their digest matches."""
    (arrival,) = source.fetch_many(Wanted({extent.chunk: [extent]}))
    result = arrival[extent.chunk]
    if isinstance(result, DieselfsError):
        raise result
    return result[0]


class FetchMetrics:
    """Counts fetches that brought something. Many extents of one chunk are one request. Safe between threads."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._chunks = metrics.counter("fetches.chunks", "Chunks that were fetched whole.")
        self._chunk_bytes = metrics.declare(catalogue.FETCHES_CHUNK_BYTES)
        self._requests = metrics.counter("fetches.range_requests", "Requests for extents of a chunk.")
        self._ranges = metrics.counter("fetches.ranges", "Extents that were fetched.")
        self._range_bytes = metrics.declare(catalogue.FETCHES_RANGE_BYTES)
        self._blocks = metrics.counter("fetches.blocks", "Blocks of large extents that were fetched.")
        self._block_bytes = metrics.declare(catalogue.FETCHES_BLOCK_BYTES)

    def count_chunk(self, length_bytes: int) -> None:
        with self._metrics.lock:
            self._chunks.value += 1
            self._chunk_bytes.value += length_bytes

    def count_blocks(self, blocks: int, length_bytes: int) -> None:
        with self._metrics.lock:
            self._blocks.value += blocks
            self._block_bytes.value += length_bytes

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

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        for arrival in self._current().fetch_many(wanted):
            for result in arrival.values():
                if isinstance(result, Slices):
                    self._counted.count_ranges(len(result), sum(result.lengths))
            yield arrival

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        content = self._current().fetch_blocks(chunk, first, end)
        self._counted.count_blocks(end - first, len(content))
        return content

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self._current().together(chunks)


class RequestMetrics:
    """Requests of a process, in extents (a whole payload is one) and in bytes. The sum of `from_node`, `from_peers`,
    `from_servers` and `failed` is `requested`.

    The node cache counts its own fetches. A node has fetched from servers the bytes of its node cache and
    `server_bytes`.
    """

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._all = (
            metrics.counter("requested.extents", "Extents and whole chunks requested."),
            metrics.counter("requested.bytes", "Bytes requested."),
        )
        self.from_node = (
            metrics.counter("requested.from_node", "Extents and whole chunks from the own node."),
            metrics.declare(catalogue.REQUESTED_NODE_BYTES),
        )
        self.from_peers = (
            metrics.counter("requested.from_peers", "Extents and whole chunks from other nodes."),
            metrics.declare(catalogue.REQUESTED_PEER_BYTES),
        )
        self.from_servers = (
            metrics.counter("requested.from_servers", "Extents and whole chunks from servers."),
            metrics.declare(catalogue.REQUESTED_SERVER_BYTES),
        )
        self.failed = (
            metrics.counter("requested.failed", "Extents and whole chunks that no source delivered."),
            metrics.counter("requested.failed_bytes", "Bytes that no source delivered."),
        )

    def count(self, way: tuple[Metric, Metric], extents: int, length_bytes: int) -> None:
        with self._metrics.lock:
            for number, total_bytes in (self._all, way):
                number.value += extents
                total_bytes.value += length_bytes
