"""Reads chunks for clients: merges requests into few large reads of the object store (DIESEL, section 4).

`ranges.py` decides the reads; in `read_queue.py`, concurrent requests for one chunk, also of several clients, share
them. This module has the preambles of chunks, and the limit of concurrent reads.
"""

import math
import os
from functools import partial

import numpy as np
import trio

from dieselfs.arrays import Ranges
from dieselfs.chunk.blocks import block_checksums
from dieselfs.chunk.format import PREAMBLE_BYTES, Preamble, check_payload, decode_header, decode_preamble
from dieselfs.chunk.ids import CHUNK_ID_BYTES, chunk_name
from dieselfs.errors import Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.limits import CHUNK_OBJECT_BYTES_MAX
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.reading.in_use import InUse
from dieselfs_server.reading.read_queue import ReadMetrics, ReadQueue
from dieselfs_server.reading.request_path import RequestPath
from dieselfs_server.store.interface import ObjectStore, OpenPayload
from dieselfs_server.store.sources import Sources

PREAMBLES_KEPT = 65_536
"""Limit of cached preambles; with its preamble, a chunk's payload needs one read."""

CHECKSUMS_KEPT = 4096
"""Limit of chunks whose block checksums are kept: 2 KiB for a chunk of 4 MiB."""
HASHING_MAX = 4
"""Limit of payloads that are verified at the same time."""


class RequestExecutor:
    """Reads ranges of chunks. If a read is cancelled, its worker thread still finishes, and nothing else is left."""

    def __init__(
        self,
        store: ObjectStore,
        metrics: Registry | None = None,
        path: RequestPath | None = None,
        sources: Sources | None = None,
    ) -> None:
        """`sources`: of attached chunks, for `open_payload`; other reads leave them to the store."""
        self._store = store
        self._sources = sources or Sources()
        self._path = path or RequestPath()
        self._tokens = trio.CapacityLimiter(self._path.chunks_max)
        self._threads = trio.CapacityLimiter(math.inf)  # the tokens bound them
        metrics = metrics or Registry()
        self._metrics = ReadMetrics(metrics)
        metrics.declare(catalogue.READING_WAITING, self.waiting)
        # Queues in use; changed only between checkpoints.
        self._queues: InUse[tuple[bytes, bytes], ReadQueue] = InUse()
        self._preambles: dict[tuple[bytes, bytes], Preamble] = {}  # changed only between checkpoints
        self._block_checksums: dict[tuple[bytes, bytes], bytes] = {}  # the last used at the end
        self._hashing = trio.CapacityLimiter(HASHING_MAX)

    def waiting(self) -> int:
        """The length of the queue of reads."""
        return self._tokens.statistics().tasks_waiting

    async def payload_length(self, dataset_id: bytes, chunk_id: bytes) -> int:
        """Bytes of the payload of a chunk. Raises as `payload`."""
        return (await self.preamble(dataset_id, chunk_id)).payload_length

    async def payload(self, dataset_id: bytes, chunk_id: bytes) -> memoryview:
        """The payload of a chunk. Raises NotFound, Damaged, Unavailable."""
        preamble = await self.preamble(dataset_id, chunk_id)
        whole = np.array([[preamble.payload_start, preamble.payload_length]], np.int64)
        return (await self._read(dataset_id, chunk_id, whole) or [memoryview(b"")])[0]

    async def open_payload(self, dataset_id: bytes, chunk_id: bytes) -> OpenPayload | None:
        """The payload of a chunk as an open file, or None if this store has no files. Raises as `payload`.

        If cancelled, nothing is left open.
        """
        _check_chunk_id(chunk_id)
        async with self._tokens:
            return await trio.to_thread.run_sync(
                open_payload, self._store, dataset_id, chunk_id, self._sources, limiter=self._threads
            )

    async def ranges(self, dataset_id: bytes, chunk_id: bytes, ranges: Ranges) -> list[memoryview]:
        """Ranges of a payload, in their order. Raises InvalidInput if one is outside of it, and as `payload`."""
        preamble = await self.preamble(dataset_id, chunk_id)
        if len(ranges) and int(ranges.sum(axis=1).max()) > preamble.payload_length:
            raise InvalidInput(
                f"a range ends after the end of the payload, which has {preamble.payload_length} bytes"
            )
        if int(ranges[:, 1].sum(dtype=np.int64)) > CHUNK_OBJECT_BYTES_MAX:
            raise InvalidInput(f"the ranges together exceed {CHUNK_OBJECT_BYTES_MAX} bytes")
        return await self._read(dataset_id, chunk_id, ranges + np.array([preamble.payload_start, 0]))

    def has_block_checksums(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        """Whether `block_checksums` reads no payload."""
        return (dataset_id, chunk_id) in self._block_checksums

    async def block_checksums(self, dataset_id: bytes, chunk_id: bytes) -> bytes:
        """The checksum (u64) of each block of a payload, which is read and verified at the first call.

        Raises NotFound, Damaged, Unavailable.
        """
        key = (dataset_id, chunk_id)
        checksums = self._block_checksums.pop(key, None)
        if checksums is None:
            preamble = await self.preamble(dataset_id, chunk_id)
            payload = await self.payload(dataset_id, chunk_id)
            checksums = await trio.to_thread.run_sync(
                _verified_checksums, preamble, payload, limiter=self._hashing
            )
        self._block_checksums[key] = checksums
        while len(self._block_checksums) > CHECKSUMS_KEPT:
            del self._block_checksums[next(iter(self._block_checksums))]
        return checksums

    async def preamble(self, dataset_id: bytes, chunk_id: bytes) -> Preamble:
        """What a chunk says of its payload; remembered. Raises as `payload`."""
        _check_chunk_id(chunk_id)
        key = (dataset_id, chunk_id)
        if key not in self._preambles:
            (head,) = await self._read(dataset_id, chunk_id, np.array([[0, PREAMBLE_BYTES]], np.int64))
            if len(self._preambles) >= PREAMBLES_KEPT:
                self._preambles.clear()
            self._preambles[key] = decode_preamble(head, f"chunk {chunk_name(chunk_id)}", chunk_id)
        return self._preambles[key]

    async def _read(self, dataset_id: bytes, chunk_id: bytes, ranges: Ranges) -> list[memoryview]:
        try:
            make = partial(self._queue, dataset_id, chunk_id)
            if not self._path.is_coalescing:  # requests do not meet
                return await make().read(ranges)
            with self._queues.held((dataset_id, chunk_id), make) as queue:
                return await queue.read(ranges)
        except (Damaged, NotFound):
            self._preambles.pop((dataset_id, chunk_id), None)
            raise

    def _queue(self, dataset_id: bytes, chunk_id: bytes) -> ReadQueue:
        read = partial(self._store.get_range, dataset_id, chunk_id)
        return ReadQueue(read, self._tokens, self._threads, self._metrics, self._path.gap_bytes_max)


def _verified_checksums(preamble: Preamble, payload: memoryview) -> bytes:
    check_payload(preamble, payload, f"chunk {chunk_name(preamble.chunk_id)}")
    return block_checksums(payload).astype("<u8").tobytes()


def open_payload(
    store: ObjectStore, dataset_id: bytes, chunk_id: bytes, sources: Sources
) -> OpenPayload | None:
    """Open the file with the payload of a chunk, which is the source of an attached one; None if the store has no
    files. Blocks.

    Raises NotFound, Damaged, Unavailable, with nothing left open. Does not check that the payload is complete.
    """
    descriptor = store.open_chunk(dataset_id, chunk_id)
    if descriptor is None:
        return None
    source = f"chunk {chunk_name(chunk_id)}"
    try:
        preamble = decode_preamble(os.pread(descriptor, PREAMBLE_BYTES, 0), source, chunk_id)
        if not preamble.is_attached:
            return OpenPayload(descriptor, preamble.payload_start, preamble.payload_length, source)
        packed = os.pread(descriptor, preamble.header_length, PREAMBLE_BYTES)
        attached = decode_header(preamble, packed, source, dataset_id).source
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise Unavailable(f"object store: {source}: {error.strerror or error}") from error
        raise
    os.close(descriptor)
    assert attached is not None  # by the decoder
    return sources.open_payload(preamble, attached)


def _check_chunk_id(chunk_id: bytes) -> None:
    if len(chunk_id) != CHUNK_ID_BYTES:
        raise InvalidInput(f"a chunk ID of {len(chunk_id)} bytes; it must have {CHUNK_ID_BYTES}")
