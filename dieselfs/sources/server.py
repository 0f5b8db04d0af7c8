"""Reads bytes of files through a server, verified against a snapshot. This module waits for sockets.

Everything is verified before it is returned: a whole payload against the checksum of its chunk, a range against that
of its extent. A mismatch is fetched once more, and then raises Damaged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_intdigest

from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.segment import Segment
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.limits import KIB
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.interface import Arrival, Slices

FETCHES_MAX = 2
"""A retry repairs damage in transit, but not in the store."""

PART_BYTES = 512 * KIB
"""A segment is received in parts of this size, which are still in the processor's cache when hashed and copied."""


class ServerSource:
    """Fetches and verifies payloads and extents of one snapshot. Blocks; safe to use from several threads."""

    def __init__(self, client: ServerClient, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._client = client

    def fetch_chunk(self, chunk: int) -> bytearray:
        """As `Source.fetch_chunk`. Raises Damaged, which names the chunk, or Unavailable."""
        payload = bytearray(self.snapshot.chunk_payload_length(chunk))
        self.fetch_chunk_into(chunk, memoryview(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """As `Source.fetch_chunk_into`. Raises as `fetch_chunk`."""
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
            # A local file may be damaged where the server has another copy.
            self._client.payload_in_parts(
                self.snapshot.dataset, chunk_id, length_bytes, parts, is_sent=number > 0
            )
            if checksum.intdigest() == self.snapshot.chunk_checksum(chunk):
                return
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: checksum of the payload does not match"
        )

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        """The bytes of extents of one chunk. Raises Damaged or Unavailable."""
        return [*map(bytes, self._fetch_joined(chunk, extents))]

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_shared_plan: bool = False
    ) -> Iterator[Arrival]:
        """As `Source.fetch_many`, one request after the other."""
        for chunk, extents in wanted.items():
            try:
                yield {chunk: self._fetch_joined(chunk, extents)}
            except DieselfsError as error:
                yield {chunk: error}

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """Each chunk by itself: a request to a server is for extents of one chunk."""
        return [[chunk] for chunk in chunks]

    def _fetch_joined(self, chunk: int, extents: Sequence[ExtentRef]) -> Slices:
        chunk_id = self.snapshot.chunk_id(chunk)
        ranges = np.array([(extent.offset, extent.length) for extent in extents], np.uint32).reshape(-1, 2)
        bad = extents[0] if extents else None
        for _ in range(FETCHES_MAX):
            joined = memoryview(self._client.ranges(self.snapshot.dataset, chunk_id, ranges))
            slices = Slices.joined(joined, extents)
            bad = first_damaged(extents, slices)
            if bad is None:
                return slices
        assert bad is not None
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: payload offset {bad.offset}: "
            f"checksum of an extent of {bad.length} bytes does not match"
        )


def is_intact(snapshot: Snapshot, chunk: int, slices: Slices, extents: Sequence[ExtentRef] = ()) -> bool:
    """Whether extents of a chunk have their checksums; without extents, whether its payload has."""
    if extents:
        return first_damaged(extents, slices) is None
    return xxh3_128_intdigest(slices.content) == snapshot.chunk_checksum(chunk)


def first_damaged(extents: Sequence[ExtentRef], contents: Iterable[bytes | memoryview]) -> ExtentRef | None:
    """The first extent whose bytes do not have its checksum, or None."""
    checksums = [xxh3_64_intdigest(content) for content in contents]
    if checksums == [extent.checksum for extent in extents]:
        return None
    pairs = zip(extents, checksums, strict=True)
    return next(extent for extent, checksum in pairs if checksum != extent.checksum)
