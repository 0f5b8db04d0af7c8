"""A source of bytes whose place another may take, while it is read: who reads notices nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dieselfs.chunk_source import Arrival, NodeSource
from dieselfs.meta.snapshot import ExtentRef


class ChangingSource:
    """A `NodeSource`. What is under way ends in the source where it began, which must answer for as long."""

    def __init__(self, source: NodeSource) -> None:
        self._current: Callable[[], NodeSource] = lambda: source

    def change(self, current: Callable[[], NodeSource]) -> None:
        """From now on bytes come from here. `current` is called for each request, in the thread that makes it."""
        self._current = current

    def fetch_chunk(self, chunk: int) -> bytes | bytearray | memoryview:
        return self._current().fetch_chunk(chunk)

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self._current().fetch_chunk_into(chunk, destination)

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        return self._current().fetch_extent(extent)

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
    ) -> Iterator[Arrival]:
        return self._current().fetch_many(wanted, is_common)

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self._current().together(chunks)
