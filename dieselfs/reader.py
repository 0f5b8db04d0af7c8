"""Reads bytes of files through a server, verified against a snapshot. This module waits for sockets.

Bytes travel as whole payloads where several files of a chunk are wanted, and as ranges where few are.
Whatever arrives is checked before anybody sees it: a whole payload against the checksum of its chunk, a range
against that of its piece. What does not match is fetched once more, then it is an error, never other bytes.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import KIB, MIB
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs.names import printable
from dieselfs.rpc.client import ServerClient

DEFAULT_CACHE_BYTES = 64 * MIB
FETCHES_MAX = 2
"""Damage on the way is mended by asking again; damage in the store is not."""

_WHOLE_SHARE = 4
"""When a quarter of a payload has been asked for, the whole is fetched."""

_REQUEST_BYTES = 256 * KIB
"""What could be sent in the time that a request takes by itself; counts as asked for."""


class ChunkReader:
    """Fetches and verifies payloads and pieces of one snapshot. Blocks; safe to use from several threads."""

    def __init__(self, client: ServerClient, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._client = client

    def fetch_chunk(self, chunk: int) -> bytearray:
        """The payload of the chunk with this number in the snapshot.

        Raises Damaged, which names it, or Unavailable.
        """
        chunk_id, checksum = self.snapshot.chunk_id(chunk), self.snapshot.chunk_checksum(chunk)
        for _ in range(FETCHES_MAX):
            payload = self._client.payload(self.snapshot.dataset, chunk_id)
            if xxh3_128_intdigest(payload) == checksum:
                return payload
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: checksum of the payload does not match"
        )

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        """The bytes of one extent, without the rest of its chunk.

        Raises Damaged, which names the chunk, or Unavailable.
        """
        return self.fetch_extents(extent.chunk, [extent])[0]

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        """The bytes of extents of one chunk. Raises Damaged or Unavailable."""
        chunk_id = self.snapshot.chunk_id(chunk)
        ranges = np.array([(extent.offset, extent.length) for extent in extents], np.uint32).reshape(-1, 2)
        ends = np.cumsum(ranges[:, 1], dtype=np.int64).tolist()
        bad = extents[0] if extents else None
        for _ in range(FETCHES_MAX):
            joined = self._client.ranges(self.snapshot.dataset, chunk_id, ranges)
            pieces = [
                bytes(joined[end - extent.length : end]) for extent, end in zip(extents, ends, strict=True)
            ]
            bad = first_damaged(extents, pieces)
            if bad is None:
                return pieces
        assert bad is not None
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: payload offset {bad.offset}: "
            f"checksum of a piece of {bad.length} bytes does not match"
        )


def first_damaged(extents: Iterable[ExtentRef], pieces: Iterable[bytes]) -> ExtentRef | None:
    """The first extent whose bytes do not have its checksum, or None."""
    for extent, piece in zip(extents, pieces, strict=True):
        if xxh3_64_intdigest(piece) != extent.checksum:
            return extent
    return None


@dataclass
class PayloadCache:
    """Payloads of one process, the least recently used given up first, within `bytes_max`.

    Safe between threads.
    """

    bytes_max: int = DEFAULT_CACHE_BYTES
    _payloads: OrderedDict[int, bytearray] = field(
        default_factory=OrderedDict
    )  # guarded by _lock, as are the others
    _bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def get(self, chunk: int) -> bytearray | None:
        with self._lock:
            payload = self._payloads.get(chunk)
            if payload is not None:
                self._payloads.move_to_end(chunk)
            return payload

    def add(self, chunk: int, payload: bytearray) -> None:
        with self._lock:
            old = self._payloads.pop(chunk, None)
            self._bytes += len(payload) - (len(old) if old is not None else 0)
            self._payloads[chunk] = payload
            while self._bytes > self.bytes_max and self._payloads:
                _, dropped = self._payloads.popitem(last=False)
                self._bytes -= len(dropped)


class FileReader:
    """Reads files of one snapshot. Blocks; safe to use from several threads.

    A chunk of which much is asked for, at once or in requests that follow soon, is fetched and kept whole:
    readers that follow the chunk-wise order come back to it. Others get just their pieces; for a chunk that is
    dropped before they come back, each file would cost a whole one.
    """

    def __init__(self, chunks: ChunkReader, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._chunks = chunks
        self._snapshot = chunks.snapshot
        self._cache = PayloadCache(cache_bytes)
        # Bytes asked for lately of chunks that are not kept, the chunk asked for last at the end. Guarded by _lock.
        self._asked_bytes: OrderedDict[int, int] = OrderedDict()
        self._lock = Lock()

    def read(self, node: int) -> bytes:
        """All bytes of a file. Raises InvalidInput if it is none, Damaged, Unavailable."""
        return self.read_many([node])[0]

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        """All bytes of each file, in the order of `nodes`; each chunk is asked for once. Raises as `read`."""
        extents = [self._extents(node) for node in nodes]
        wanted: dict[int, list[ExtentRef]] = {}
        for of_file in extents:
            for extent in of_file:
                wanted.setdefault(extent.chunk, []).append(extent)
        pieces: dict[ExtentRef, bytes] = {}
        for chunk, of_chunk in wanted.items():
            pieces.update(zip(of_chunk, self._pieces(chunk, of_chunk), strict=True))
        return [
            pieces[of_file[0]] if len(of_file) == 1 else b"".join([pieces[extent] for extent in of_file])
            for of_file in extents
        ]

    def _extents(self, node: int) -> list[ExtentRef]:
        extents = self._snapshot.extents(node)
        size = self._snapshot.size(node)
        path = self._snapshot.path(node)
        if not extents and not self._snapshot.stat(node).is_file:
            raise InvalidInput(f"dl://{self._snapshot.dataset}/{printable(path)}: not a file")
        if sum(extent.length for extent in extents) != size:
            raise Damaged(f"dl://{self._snapshot.dataset}/{printable(path)}: its pieces are not {size} bytes")
        return extents

    def _pieces(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        payload = self._cache.get(chunk)
        if payload is None and self._is_worth_whole(chunk, extents):
            try:
                payload = self._chunks.fetch_chunk(chunk)
                self._cache.add(chunk, payload)
            except Damaged:
                payload = None  # damage elsewhere in the chunk: the pieces may still be whole
        if payload is None:
            return self._chunks.fetch_extents(chunk, extents)
        view = memoryview(payload)
        return [bytes(view[extent.offset : extent.offset + extent.length]) for extent in extents]

    def _is_worth_whole(self, chunk: int, extents: Sequence[ExtentRef]) -> bool:
        payload_bytes = self._snapshot.chunk_payload_length(chunk)
        if payload_bytes > self._cache.bytes_max:
            return False
        with self._lock:
            asked_bytes = self._asked_bytes.pop(chunk, 0) + _REQUEST_BYTES
            asked_bytes += sum(extent.length for extent in extents)
            if asked_bytes * _WHOLE_SHARE >= payload_bytes:
                return True
            self._asked_bytes[chunk] = asked_bytes
            while len(self._asked_bytes) * payload_bytes > self._cache.bytes_max:
                self._asked_bytes.popitem(last=False)
        return False
