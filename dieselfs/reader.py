"""Reads bytes of files through a server, verified against a snapshot. This module waits for sockets.

Bytes travel as whole payloads where several files of a chunk are wanted, and as ranges where few are.
Whatever arrives is checked before anybody sees it: a whole payload against the checksum of its chunk, a range
against that of its piece. What does not match is fetched once more, then it is an error, never other bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_intdigest

from dieselfs.cache.segment import Segment
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk_source import Arrival, Excerpts
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.limits import KIB
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs.rpc.client import ServerClient

FETCHES_MAX = 2
"""Damage on the way is mended by asking again; damage in the store is not."""

PART_BYTES = 512 * KIB
"""So much of a segment is received at a time: it is still in the processor's caches when it is looked at and copied."""


class ChunkReader:
    """Fetches and verifies payloads and pieces of one snapshot. Blocks; safe to use from several threads."""

    def __init__(self, client: ServerClient, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._client = client

    def fetch_chunk(self, chunk: int) -> bytearray:
        """The payload of the chunk with this number in the snapshot.

        Raises Damaged, which names it, or Unavailable.
        """
        payload = bytearray(self.snapshot.chunk_payload_length(chunk))
        self.fetch_chunk_into(chunk, memoryview(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """Receive the payload of a chunk straight into `destination`, which has its length.

        Raises as `fetch_chunk`; what is in `destination` then means nothing.
        """
        checksum = xxh3_128()

        def parts() -> Iterator[memoryview]:
            checksum.reset()
            yield destination
            checksum.update(destination)

        self._fetch_parts(chunk, parts, checksum)

    def fetch_segment(self, chunk: int) -> Segment:
        """The payload of a chunk in sealed memory, to be shared with other processes. Raises as `fetch_chunk`."""
        length_bytes = self.snapshot.chunk_payload_length(chunk)
        segment = Segment.create(length_bytes)
        checksum = xxh3_128()

        def parts() -> Iterator[memoryview]:
            checksum.reset()
            room = memoryview(bytearray(min(PART_BYTES, length_bytes)))
            for start in range(0, length_bytes, PART_BYTES):
                part = room[: length_bytes - start]
                yield part
                checksum.update(part)
                segment.write(start, part)

        try:
            self._fetch_parts(chunk, parts, checksum)
            segment.seal()
        except BaseException:
            segment.close()
            raise
        return segment

    def _fetch_parts(self, chunk: int, parts: Callable[[], Iterator[memoryview]], checksum: xxh3_128) -> None:
        """Fetch a payload into `parts()`, which has its `checksum` worked out by its end. Raises as `fetch_chunk`."""
        chunk_id, length_bytes = self.snapshot.chunk_id(chunk), self.snapshot.chunk_payload_length(chunk)
        for number in range(FETCHES_MAX):
            # A file that is read here may be damaged where the server knows another copy.
            self._client.payload_in_parts(
                self.snapshot.dataset, chunk_id, length_bytes, parts, is_sent=number > 0
            )
            if checksum.intdigest() == self.snapshot.chunk_checksum(chunk):
                return
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: checksum of the payload does not match"
        )

    def is_payload(self, chunk: int, content: memoryview) -> bool:
        """Whether bytes are the payload of a chunk, by its checksum."""
        return xxh3_128_intdigest(content) == self.snapshot.chunk_checksum(chunk)

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        """The bytes of one extent, without the rest of its chunk.

        Raises Damaged, which names the chunk, or Unavailable.
        """
        return self.fetch_extents(extent.chunk, [extent])[0]

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        """The bytes of extents of one chunk. Raises Damaged or Unavailable."""
        return [*map(bytes, self._fetch_joined(chunk, extents))]

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
    ) -> Iterator[Arrival]:
        """The bytes of extents of many chunks, one request after the other, or why they cannot be had."""
        for chunk, extents in wanted.items():
            try:
                yield {chunk: self._fetch_joined(chunk, extents)}
            except DieselfsError as error:
                yield {chunk: error}

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """Each chunk by itself: a server is asked for extents of one at a time."""
        return [[chunk] for chunk in chunks]

    def _fetch_joined(self, chunk: int, extents: Sequence[ExtentRef]) -> Excerpts:
        chunk_id = self.snapshot.chunk_id(chunk)
        ranges = np.array([(extent.offset, extent.length) for extent in extents], np.uint32).reshape(-1, 2)
        bad = extents[0] if extents else None
        for _ in range(FETCHES_MAX):
            joined = memoryview(self._client.ranges(self.snapshot.dataset, chunk_id, ranges))
            excerpts = Excerpts.joined(joined, extents)
            bad = first_damaged(extents, excerpts)
            if bad is None:
                return excerpts
        assert bad is not None
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: payload offset {bad.offset}: "
            f"checksum of a piece of {bad.length} bytes does not match"
        )


def first_damaged(extents: Sequence[ExtentRef], pieces: Iterable[bytes | memoryview]) -> ExtentRef | None:
    """The first extent whose bytes do not have its checksum, or None."""
    checksums = [xxh3_64_intdigest(piece) for piece in pieces]
    if checksums == [extent.checksum for extent in extents]:
        return None
    pairs = zip(extents, checksums, strict=True)
    return next(extent for extent, checksum in pairs if checksum != extent.checksum)
