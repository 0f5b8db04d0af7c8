"""Counts what a node fetches, and in how many requests. Blocks as the source behind it does; safe between threads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from threading import Lock

from dieselfs.chunk_source import NodeSource
from dieselfs.meta.snapshot import ExtentRef


@dataclass(slots=True)
class FetchFigures:
    """Counts since the start, of fetches that brought something."""

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
        self._count_ranges([data])
        return data

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        pieces = self._source.fetch_extents(chunk, extents)
        self._count_ranges(pieces)
        return pieces

    def _count_ranges(self, pieces: list[bytes]) -> None:
        with self._lock:
            self._figures.range_requests += 1
            self._figures.ranges += len(pieces)
            self._figures.range_bytes += sum(map(len, pieces))

    def figures(self) -> dict[str, int]:
        with self._lock:
            return asdict(self._figures)
