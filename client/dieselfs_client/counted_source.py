"""Counts what a node fetches, and in how many requests. Blocks as the source behind it does; safe between threads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock

from dieselfs.chunk_source import Arrival, Excerpts, NodeSource
from dieselfs.meta.snapshot import ExtentRef


@dataclass(slots=True)
class FetchFigures:
    """Counts since the start, of fetches that brought something. Many extents of one chunk are one request."""

    chunks: int = 0
    chunk_bytes: int = 0
    range_requests: int = 0
    ranges: int = 0
    range_bytes: int = 0


class CountedSource:
    """A source that counts."""

    def __init__(self, source: NodeSource) -> None:
        self._source = source
        self._figures = FetchFigures()
        self._lock = Lock()

    def fetch_chunk(self, chunk: int) -> bytes | bytearray | memoryview:
        payload = self._source.fetch_chunk(chunk)
        self._count_chunk(len(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self._source.fetch_chunk_into(chunk, destination)
        self._count_chunk(len(destination))

    def _count_chunk(self, length_bytes: int) -> None:
        with self._lock:
            self._figures.chunks += 1
            self._figures.chunk_bytes += length_bytes

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        data = self._source.fetch_extent(extent)
        self._count_ranges([len(data)])
        return data

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
    ) -> Iterator[Arrival]:
        for arrival in self._source.fetch_many(wanted, is_common):
            for brought in arrival.values():
                if isinstance(brought, Excerpts):
                    self._count_ranges(brought.lengths)
            yield arrival

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self._source.together(chunks)

    def _count_ranges(self, lengths_bytes: Sequence[int]) -> None:
        with self._lock:
            self._figures.range_requests += 1
            self._figures.ranges += len(lengths_bytes)
            self._figures.range_bytes += sum(lengths_bytes)

    def figures(self) -> dict[str, int]:
        with self._lock:
            return asdict(self._figures)
