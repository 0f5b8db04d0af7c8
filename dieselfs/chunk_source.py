"""Where bytes come from, for those who hold or hand on chunks of a snapshot: a server, or the nodes of a job.

All methods block, may be called from many threads at once, raise DieselfsError, and give what was verified.
"""

from collections.abc import Sequence
from typing import Protocol

from dieselfs.meta.snapshot import ExtentRef


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
    """Also many extents of one chunk in one request."""

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        """The bytes of extents of one chunk. Raises Damaged, which names the chunk, or Unavailable."""
        ...
