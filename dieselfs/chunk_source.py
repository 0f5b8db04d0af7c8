"""Where bytes come from, for those who hold or hand on chunks of a snapshot: a server, or the nodes of a job.

All methods block, may be called from many threads at once, raise DieselfsError, and give what was verified.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from dieselfs.errors import DieselfsError
from dieselfs.meta.snapshot import ExtentRef


@dataclass(frozen=True, eq=False, slots=True)
class Excerpts:
    """Bytes of extents, left where they lie: the one with number i begins at `starts[i]` of `content`.

    They are views, cut when they are taken; each holds all of `content` in memory.
    """

    content: memoryview
    starts: Sequence[int]
    lengths: Sequence[int]

    @classmethod
    def of_payload(cls, payload: memoryview, extents: Sequence[ExtentRef]) -> "Excerpts":
        """Out of the payload of their chunk."""
        return cls(payload, [extent.offset for extent in extents], [extent.length for extent in extents])

    @classmethod
    def joined(cls, content: memoryview, extents: Sequence[ExtentRef]) -> "Excerpts":
        """Where one lies behind the other, and nothing in between."""
        lengths = [extent.length for extent in extents]
        return cls(content, [0, *accumulate(lengths[:-1])] if lengths else [], lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[memoryview]:
        content, places = self.content, zip(self.starts, self.lengths, strict=True)
        return iter([content[start : start + length] for start, length in places])

    def __getitem__(self, number: int) -> memoryview:
        start = self.starts[number]
        return self.content[start : start + self.lengths[number]]


Brought = Excerpts | DieselfsError
"""What came of the extents of a chunk, in the order in which they were wanted; or why they cannot be had."""

Arrival = dict[int, Brought]
"""What came together, by chunk."""


class ChunkSource(Protocol):
    """Chunks, and single extents of them."""

    def fetch_chunk(self, chunk: int) -> bytes | bytearray | memoryview:
        """The payload of a chunk (an index into the snapshot's table). Raises Damaged unless its checksum matches."""
        ...

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """As `fetch_chunk`, into memory of the payload's length; if it raises, what is there then means nothing."""
        ...

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        """The bytes of one extent. Raises Damaged unless their checksum matches."""
        ...


class NodeSource(ChunkSource, Protocol):
    """Also many extents, in as few requests as can be."""

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
    ) -> Iterator[Arrival]:
        """The bytes of extents of many chunks: each chunk once, as soon as it is here, in whatever order; what one
        answer brings comes together.

        `is_common`: others will soon want the rest of these chunks, so that it pays to have them whole in the memory of
        a job. Nothing is asked before the first is taken; whoever takes no more lets go of the iterator.
        """
        ...

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """The same chunks, those together whose extents come in one request. Asks nobody."""
        ...
