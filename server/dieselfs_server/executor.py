"""Reads for clients: requests for parts of chunks become few large reads from the object store (DIESEL, section 4).

Which reads to make is decided in `ranges.py`; here they are made, in worker threads, a bounded number at once.
"""

import numpy as np
import trio

from dieselfs.chunk.format import PREAMBLE_BYTES, Preamble, decode_preamble
from dieselfs.chunk.ids import CHUNK_ID_BYTES, chunk_name
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.limits import CHUNK_OBJECT_BYTES_MAX
from dieselfs_server.ranges import Ranges, cut_ranges, merge_ranges
from dieselfs_server.store.interface import ObjectStore

STORE_READS_MAX = 16
"""Reads from the object store under way at once, over all clients."""

PREAMBLES_KEPT = 65_536
"""Preambles of chunks that were read before: the next read of the chunk goes straight to its payload."""


class RequestExecutor:
    """Reads parts of chunks. If a read is cancelled, its worker thread still finishes, and nothing is left behind."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._limiter = trio.CapacityLimiter(STORE_READS_MAX)
        self._preambles: dict[tuple[bytes, bytes], Preamble] = {}  # changed only between checkpoints

    async def payload(self, dataset_id: bytes, chunk_id: bytes) -> bytes:
        """The payload of a chunk. Raises NotFound, Damaged, Unavailable."""
        preamble = await self._preamble(dataset_id, chunk_id)
        return await self._read(dataset_id, preamble, 0, preamble.payload_length)

    async def ranges(self, dataset_id: bytes, chunk_id: bytes, ranges: Ranges) -> list[memoryview]:
        """Parts of a payload, in the order of `ranges`. Raises InvalidInput if they lie outside, and as `payload`."""
        preamble = await self._preamble(dataset_id, chunk_id)
        if len(ranges) and int(ranges.sum(axis=1).max()) > preamble.payload_length:
            raise InvalidInput(f"a range ends behind the payload of {preamble.payload_length} bytes")
        if int(ranges[:, 1].sum(dtype=np.int64)) > CHUNK_OBJECT_BYTES_MAX:
            raise InvalidInput(f"the ranges have more than {CHUNK_OBJECT_BYTES_MAX} bytes together")
        spans = merge_ranges(ranges)
        contents = [await self._read(dataset_id, preamble, start, size) for start, size in spans.tolist()]
        return cut_ranges(ranges, spans, contents)

    async def _preamble(self, dataset_id: bytes, chunk_id: bytes) -> Preamble:
        if len(chunk_id) != CHUNK_ID_BYTES:
            raise InvalidInput(f"a chunk ID has {CHUNK_ID_BYTES} bytes")
        key = (dataset_id, chunk_id)
        if key not in self._preambles:
            head = await self._blocking_read(dataset_id, chunk_id, 0, PREAMBLE_BYTES)
            if len(self._preambles) >= PREAMBLES_KEPT:
                self._preambles.clear()
            self._preambles[key] = decode_preamble(head, f"chunk {chunk_name(chunk_id)}", chunk_id)
        return self._preambles[key]

    async def _read(self, dataset_id: bytes, preamble: Preamble, start: int, length: int) -> bytes:
        try:
            return await self._blocking_read(
                dataset_id, preamble.chunk_id, preamble.payload_start + start, length
            )
        except (Damaged, NotFound):
            self._preambles.pop((dataset_id, preamble.chunk_id), None)
            raise

    async def _blocking_read(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        read = self._store.get_range
        return await trio.to_thread.run_sync(
            read, dataset_id, chunk_id, offset, length, limiter=self._limiter
        )
