"""Reads bytes of files through a server, verified against a snapshot. This module waits for sockets.

Everything is verified before it is returned: a whole payload against the digest of its chunk, a range against that
of its extent. A mismatch is fetched once more, and then raises Damaged.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock, Thread
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from dieselfs.chunk.blocks import BLOCK_BYTES, Checksums, block_checksums, block_range, bytes_of
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.segment import Memory, Segment, map_sealed
from dieselfs.digests import digest_of, extent_digest_of
from dieselfs.errors import AccessDenied, Damaged, DieselfsError, NotFound
from dieselfs.forks import renew_after_fork
from dieselfs.limits import KIB, SHARED_PAYLOADS_MAX
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.interface import Arrival, Slices, Wanted
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.stalls import METER

FETCHES_MAX = 2
"""A retry repairs damage in transit, but not in the store."""

PART_BYTES = 512 * KIB
"""A payload is received in parts of this size, which are still in the processor's cache when hashed and copied. Further
bytes arrive meanwhile.
"""

AHEAD_CHUNKS = 16
"""The files of this number of chunks are opened with one call for a reader of chunks in their order."""
AHEAD_LEAD = 4
"""How many chunks before these: others of the run are being fetched meanwhile, in any order within this distance."""
RUN_CHUNKS = 3
"""A run is there if at least this number of the AHEAD_LEAD chunks before have been fetched lately."""
LAST_CHUNKS = 256
"""Limit of chunks that are remembered as fetched, so that they are not opened again."""

CHECKSUMS_KEPT = 4096
"""Limit of chunks whose block checksums are kept: 2 KiB for a chunk of 4 MiB."""


class SharedMemory(NamedTuple):
    """A payload in memory of another process, which has verified it. `is_kept`: that process keeps it in memory."""

    memory: Memory
    is_kept: bool


class ServerSource:
    """Fetches and verifies payloads and extents of one snapshot. Blocks; safe to use from several threads."""

    def __init__(
        self,
        client: ServerClient,
        snapshot: Snapshot,
        metrics: Registry | None = None,
        opens_ahead: bool = False,
    ) -> None:
        """`opens_ahead`: an own server on this machine may open files of chunks that are perhaps not read."""
        self.snapshot = snapshot
        self.metrics = metrics = metrics or Registry()
        """What reading this snapshot comes to, in this process."""
        self._received = metrics.counter("servers.received_bytes", "Bytes of chunks that servers have sent.")
        self._client = client
        self._lock = Lock()
        self._checksums: dict[int, Checksums] = {}  # of blocks, by chunk; the last used at the end
        self._opens_ahead = opens_ahead
        self._last: deque[int] = deque(maxlen=LAST_CHUNKS)  # fetched whole; changed in single steps
        self._touched = 0  # chunks whose blocks were read before their file was open, about
        self._opening = Lock()  # held while the files of chunks are opened in the background
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Threads of the parent may have held the locks."""
        self._lock, self._opening = Lock(), Lock()

    @property
    def disk_bytes(self) -> int:
        """The limit of the disk tier; 0 without one."""
        return 0

    def keeps(self, chunk: int) -> bool:
        """Whether a chunk is on the disk of this node, or would be after a fetch, as far as is known. No I/O."""
        return False

    def hold(self) -> int | None:
        """A new descriptor, by which this process holds the chunks on the disk, for a fork; None without a disk."""
        return None

    def share(self, hold: int) -> None:
        """In a fork, before the first use: hold the chunks together with the parent, whose `hold` is taken over."""
        os.close(hold)

    def close(self) -> None:
        """Release what the source has beside the client. May be called again; requests in flight complete."""

    def fetch_chunk(self, chunk: int) -> bytearray:
        """As `Source.fetch_chunk`. Raises Damaged, which names the chunk, or Unavailable."""
        payload = bytearray(self.snapshot.chunk_payload_length(chunk))
        self.fetch_chunk_into(chunk, memoryview(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """As `Source.fetch_chunk_into`. Raises as `fetch_chunk`."""
        digest = blake3()

        def parts() -> Iterator[memoryview]:
            digest.reset()
            yield from hashed_parts(destination, digest)

        self.fetch_parts(chunk, parts, digest)

    def fetch_segment(self, chunk: int) -> Segment:
        """The payload of a chunk in sealed memory, to be shared with other processes. Raises as `fetch_chunk`."""
        length_bytes = self.snapshot.chunk_payload_length(chunk)
        segment = Segment.create(length_bytes)
        digest = blake3()

        def parts() -> Iterator[memoryview]:
            digest.reset()
            room = memoryview(bytearray(min(PART_BYTES, length_bytes)))
            for start in range(0, length_bytes, PART_BYTES):
                part = room[: length_bytes - start]
                yield part
                with METER.timed("verification"):
                    digest.update(part)
                segment.write(start, part)

        try:
            self.fetch_parts(chunk, parts, digest)
            segment.seal()
        except BaseException:
            segment.close()
            raise
        return segment

    def fetch_parts(self, chunk: int, parts: Callable[[], Iterator[memoryview]], digest: blake3) -> None:
        """Fetch a payload into `parts()`, which has its `digest` worked out by its end. All methods for whole payloads
        come here. Raises as `fetch_chunk`.
        """
        self._receive(chunk, parts, digest)

    def _receive(
        self,
        chunk: int,
        parts: Callable[[], Iterator[memoryview]],
        digest: blake3,
        room_of: Callable[[int], memoryview] | None = None,
    ) -> None:
        """As `fetch_parts`, from a server. `room_of`: memory for a payload that comes compressed, see
        `frames.received`.
        """
        chunk_id, length_bytes = self.snapshot.chunk_id(chunk), self.snapshot.chunk_payload_length(chunk)
        ahead = self._chunks_ahead(chunk) if self._opens_ahead else ()
        for number in range(FETCHES_MAX):
            # A local file may be damaged where the server has another copy.
            with METER.timed("server", but=["verification"]):
                self._client.payload_in_parts(
                    self.snapshot.dataset, chunk_id, length_bytes, parts, number > 0, ahead, room_of
                )
            ahead = ()
            self.metrics.add(self._received, length_bytes)
            if digest.digest() == self.snapshot.chunk_digest(chunk):
                return
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: digest of the payload does not match"
        )

    def _chunks_ahead(self, chunk: int) -> Sequence[bytes]:
        """The IDs of the next AHEAD_CHUNKS chunks, once, when a run of chunks comes near them."""
        first = chunk + AHEAD_LEAD
        nexts: list[int] = []
        if first % AHEAD_CHUNKS == 0:
            last = [*self._last.copy()]
            run = {each for each in last[-2 * AHEAD_LEAD :] if 0 < chunk - each <= AHEAD_LEAD}
            if len(run) >= RUN_CHUNKS:
                following = range(first, min(first + AHEAD_CHUNKS, self.snapshot.chunk_count))
                nexts = [each for each in following if each not in last]
        self._last.append(chunk)
        return [*map(self.snapshot.chunk_id, nexts)]

    def shared(self, chunks: Sequence[int], wanted_bytes: int) -> dict[int, SharedMemory]:
        """Payloads that an own server on this machine shares, by chunk: the first if it is in memory, or worth it for
        a reader who needs `wanted_bytes` of it; the others if they are kept in memory. The server has verified them.

        Raises Unavailable. Errors of a chunk are left to the methods that fetch.
        """
        snapshot = self.snapshot
        ids = b"".join(map(snapshot.chunk_id, chunks))
        try:
            files = self._client.shared_payloads(snapshot.dataset, ids, wanted_bytes)
        except (Damaged, NotFound, AccessDenied):
            return {}
        found: dict[int, SharedMemory] = {}
        for file in files:
            try:
                chunk = chunks[file.place]
                length_bytes = snapshot.chunk_payload_length(chunk)
                if file.length == length_bytes and file.digest == snapshot.chunk_digest(chunk):
                    found[chunk] = SharedMemory(map_sealed(file.descriptor, length_bytes), file.is_kept)
            except (DieselfsError, IndexError):  # the server is not what it seems, or there is no room
                pass
            finally:
                os.close(file.descriptor)
        return found

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        """The bytes of extents of one chunk. Raises Damaged or Unavailable."""
        return [*map(bytes, self.fetch_joined(chunk, extents))]

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        """As `Source.fetch_many`, one request after the other."""
        for chunk, extents in wanted.items():
            try:
                yield {chunk: self.fetch_joined(chunk, extents)}
            except DieselfsError as error:
                yield {chunk: error}

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        """As `Source.fetch_blocks`. Raises Damaged, which names the chunk, or Unavailable."""
        dataset, chunk_id = self.snapshot.dataset, self.snapshot.chunk_id(chunk)
        start, length = bytes_of(first, end, self.snapshot.chunk_payload_length(chunk))
        is_known = self.known_checksums(chunk) is not None
        take_checksums = None if is_known else partial(self._take_checksums, chunk)
        for number in range(FETCHES_MAX):
            # A local file may be damaged where the server has another copy.
            with METER.timed("server"):
                content = None
                if not number:
                    content = self._client.part(dataset, chunk_id, start, length, take_checksums)
                if content is None:
                    content = self._client.ranges(dataset, chunk_id, np.array([(start, length)], np.uint32))
            self.metrics.add(self._received, len(content))
            checksums = self._checksums_of(chunk)[first:end]
            with METER.timed("verification"):
                is_right = np.array_equal(block_checksums(content), checksums)
            if is_right:
                if self._opens_ahead and not is_known:
                    self._open_around(chunk)
                return memoryview(content)
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {dataset}: payload offset {first * BLOCK_BYTES}: "
            f"checksum of a block does not match"
        )

    def _open_around(self, chunk: int) -> None:
        """Blocks of a chunk were read whose file was not open. Open those of others around it in the background: as
        many as this has happened before, up to SHARED_PAYLOADS_MAX. So reads at random places of a large file soon
        need no requests. Nothing is opened of a dataset whose files cannot all be open.
        """
        self._touched += 1
        count = min(1 << (self._touched.bit_length() - 1), SHARED_PAYLOADS_MAX)
        chunks, first = self.snapshot.chunk_count, chunk - chunk % count
        around = range(first, min(first + count, chunks)) if chunks <= self._client.opened_max else ()
        unknown = {self.snapshot.chunk_id(each): each for each in around if each not in self._checksums}
        if not unknown or not self._opening.acquire(blocking=False):
            return

        def open_ahead() -> None:
            try:
                self._client.open_ahead(
                    self.snapshot.dataset,
                    [*unknown],
                    lambda chunk_id, received: self._take_checksums(unknown[chunk_id], received),
                )
            finally:
                self._opening.release()

        try:
            Thread(target=open_ahead, name="dieselfs-open-ahead", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            self._opening.release()

    def _take_checksums(self, chunk: int, received: bytes) -> None:
        """Keep the checksums of a chunk that came with its file."""
        _, blocks = block_range(0, self.snapshot.chunk_payload_length(chunk))
        if len(received) == 8 * blocks:
            self.keep_checksums(chunk, np.frombuffer(received, "<u8"))

    def _checksums_of(self, chunk: int) -> Checksums:
        """Checksums of all blocks of a chunk. Two threads may fetch them at the same time."""
        checksums = self.known_checksums(chunk)
        if checksums is None:
            _, blocks = block_range(0, self.snapshot.chunk_payload_length(chunk))
            chunk_id = self.snapshot.chunk_id(chunk)
            checksums = self._client.block_checksums(self.snapshot.dataset, chunk_id, blocks)
        self.keep_checksums(chunk, checksums)
        return checksums

    def known_checksums(self, chunk: int) -> Checksums | None:
        """Checksums of all blocks of a chunk, if they are in memory."""
        with self._lock:
            return self._checksums.get(chunk)

    def keep_checksums(self, chunk: int, checksums: Checksums) -> None:
        """Keep the checksums of all blocks of a chunk, as the last ones to be used."""
        with self._lock:
            self._checksums.pop(chunk, None)
            self._checksums[chunk] = checksums
            while len(self._checksums) > CHECKSUMS_KEPT:
                del self._checksums[next(iter(self._checksums))]

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """Each chunk by itself: a request to a server is for extents of one chunk."""
        return [[chunk] for chunk in chunks]

    def fetch_joined(self, chunk: int, extents: Sequence[ExtentRef]) -> Slices:
        """Extents of one chunk, verified. All methods for extents come here. Raises as `fetch_extents`."""
        chunk_id = self.snapshot.chunk_id(chunk)
        ranges = np.array([(extent.offset, extent.length) for extent in extents], np.uint32).reshape(-1, 2)
        bad = extents[0] if extents else None
        for _ in range(FETCHES_MAX):
            with METER.timed("server"):
                joined = memoryview(self._client.ranges(self.snapshot.dataset, chunk_id, ranges))
            self.metrics.add(self._received, len(joined))
            slices = Slices.joined(joined, extents)
            with METER.timed("verification"):
                bad = first_damaged(extents, slices)
            if bad is None:
                return slices
        assert bad is not None
        raise Damaged(
            f"chunk {chunk_name(chunk_id)} of {self.snapshot.dataset}: payload offset {bad.offset}: "
            f"digest of an extent of {bad.length} bytes does not match"
        )


def hashed_parts(destination: memoryview, digest: blake3) -> Iterator[memoryview]:
    """The parts of a buffer, in their order; each must be full when the next is requested, and is hashed then."""
    for start in range(0, len(destination), PART_BYTES):
        part = destination[start : start + PART_BYTES]
        yield part
        with METER.timed("verification"):
            digest.update(part)


def is_intact(snapshot: Snapshot, chunk: int, slices: Slices, extents: Sequence[ExtentRef] = ()) -> bool:
    """Whether extents of a chunk have their digests; without extents, whether its payload has."""
    with METER.timed("verification"):
        if extents:
            return first_damaged(extents, slices) is None
        return digest_of(slices.content) == snapshot.chunk_digest(chunk)


def first_damaged(extents: Sequence[ExtentRef], contents: Iterable[bytes | memoryview]) -> ExtentRef | None:
    """The first extent whose bytes do not have its digest, or None."""
    digests = [extent_digest_of(content) for content in contents]
    if digests == [extent.digest for extent in extents]:
        return None
    pairs = zip(extents, digests, strict=True)
    return next(extent for extent, digest in pairs if digest != extent.digest)
