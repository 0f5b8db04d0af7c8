"""Decrypts the bytes of an encrypted dataset, after the source below has verified the ciphertext. This module waits for
its source.

Everything below stays encrypted: bytes from servers, on the disk of the node, and in the memory that nodes of a job
pool. Everything above is plain: the caches of one process, and what `dlcmd cache` shares with processes of its user.

    fetch_chunk    the payload, in which each live extent is decrypted in place; the rest of it is not touched
    fetch_many     whole extents
    fetch_blocks   the segments around the blocks, and their trailers
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.chunk.blocks import block_range, bytes_of
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.segment import Segment, readonly_view
from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.encryption.segments import (
    SEGMENT_BYTES,
    TRAILER_BYTES,
    extent_context,
    open_extent,
    seal_extent,
    sealed_length,
    segments_of,
)
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.names import printable
from dieselfs.rpc.wire import Buffer
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.snapshot.storage_order import StorageOrder
from dieselfs.sources.interface import Arrival, Slices, Source, Wanted
from dieselfs.sources.server import ServerSource, SharedMemory
from dieselfs.telemetry.stalls import METER

TRAILERS_KEPT = 1024
"""Extents of which the trailers are kept for the next read of blocks; those of 4 MiB have 2 KiB."""


class Decryption:
    """Where the extents of a snapshot are, and what opens them. Thread-safe."""

    def __init__(self, snapshot: Snapshot, cipher: Callable[[], DatasetCipher]) -> None:
        """`snapshot`: with plain names. `cipher` is called at the first use."""
        self._snapshot = snapshot
        self._folder = snapshot.folder + b"/" if snapshot.folder else b""
        self._make = cipher
        self._cipher: DatasetCipher | None = None
        order = StorageOrder(snapshot, np.arange(len(snapshot)))
        self._extents: Numbers = order.extents
        self._owners: Numbers = order.owners
        chunks = snapshot.column("extent_chunks")[order.extents].astype(np.int64)
        offsets = snapshot.column("extent_offsets")[order.extents].astype(np.int64)
        self._keys: Numbers = chunks << 32 | offsets

    def load_key(self) -> bytes:
        """The key, from now on without a request. Raises as `cipher`."""
        if self._cipher is None:
            self._cipher = self._make()
        return self._cipher.data_key

    def of_chunk(self, chunk: int) -> list[ExtentRef]:
        """The extents in a chunk, by offset."""
        first, end = np.searchsorted(self._keys, [chunk << 32, (chunk + 1) << 32]).tolist()
        return self._snapshot.extent_refs(self._extents[first:end])

    def sealed(self, extent: ExtentRef) -> ExtentRef:
        """The extent as it is stored."""
        return extent._replace(place=sealed_length(extent.place), length=sealed_length(extent.length))

    def opened(self, extents: Sequence[ExtentRef], sealed: Iterable[memoryview]) -> Slices:
        """The plain bytes of extents of a chunk, from memory that begins with each. Raises Damaged, with the file."""
        slices = Slices.joined(memoryview(bytearray(sum([extent.length for extent in extents]))), extents)
        self._open_into(extents, sealed, slices)
        return slices

    def opened_part(self, extent: ExtentRef, sealed: memoryview, length: int, first: int) -> memoryview:
        """The `length` plain bytes of segments of an extent, from number `first` on. Raises as `opened`."""
        plain = memoryview(bytearray(length))
        self._open_into([extent], [sealed], [plain], first)
        return plain

    def _open_into(
        self,
        extents: Sequence[ExtentRef],
        sealed: Iterable[memoryview],
        plain: Iterable[memoryview],
        first: int = 0,
    ) -> None:
        if extents:
            keys = np.array([extent.chunk << 32 | extent.offset for extent in extents], np.int64)
            owners = self._owners[np.searchsorted(self._keys, keys)]
            places, lengths = [extent.place for extent in extents], [extent.length for extent in extents]
            self._open(extents[0].chunk, owners, zip(places, lengths, sealed, plain, strict=True), first)

    def open_chunk(self, chunk: int, payload: memoryview, destination: memoryview) -> None:
        """Decrypt the extents in a payload into memory of the same length, which may be that of the payload. Raises as
        `opened`; then the content of the memory is undefined.
        """
        here = slice(*np.searchsorted(self._keys, [chunk << 32, (chunk + 1) << 32]))
        columns = (self._snapshot.column(f"extent_{name}") for name in ("places", "offsets", "lengths"))
        places, offsets, lengths = (column[self._extents[here]].tolist() for column in columns)
        sealed = (payload[offset:] for offset in offsets)
        plain = (destination[at : at + length] for at, length in zip(offsets, lengths, strict=True))
        self._open(chunk, self._owners[here], zip(places, lengths, sealed, plain, strict=True))

    def seal_file(self, file: int, content: Buffer) -> bytes:
        """A file of 64 MiB at most as one encrypted extent, for memory that other processes may read."""
        return seal_extent(self.load_key(), self._context(file), memoryview(content))

    def open_file(self, file: int, sealed: Buffer) -> bytes:
        """The inverse of `seal_file`. Raises Damaged."""
        plain = memoryview(bytearray(int(self._snapshot.column("sizes")[file])))
        if len(sealed) != sealed_length(len(plain)):
            raise Damaged(f"an encrypted file of {len(sealed)} bytes")
        open_extent(self.load_key(), self._context(file), memoryview(sealed), plain)
        return bytes(plain)

    def _context(self, file: int) -> bytes:
        snapshot = self._snapshot
        size, mtime_ns = (int(snapshot.column(name)[file]) for name in ("sizes", "mtimes_ns"))
        return extent_context(self._folder + snapshot.path(file), size, 0, size, mtime_ns)

    def _open(
        self,
        chunk: int,
        owners: Numbers,
        extents: Iterable[tuple[int, int, memoryview, memoryview]],
        first: int = 0,
    ) -> None:
        """Decrypt extents: place, length, ciphertext, and memory for the plain bytes. `owners`: their files."""
        snapshot, key = self._snapshot, self.load_key()
        sizes, times = (snapshot.column(name)[owners].tolist() for name in ("sizes", "mtimes_ns"))
        paths = snapshot.path_many(owners)
        with METER.timed("verification"):
            for size, mtime_ns, path, (place, length, sealed, plain) in zip(
                sizes, times, paths, extents, strict=True
            ):
                try:
                    context = extent_context(self._folder + path, size, place, length, mtime_ns)
                    open_extent(key, context, sealed, plain, first)
                except Damaged as error:
                    where = f"dl://{snapshot.location}/{printable(path)}"
                    name = chunk_name(snapshot.chunk_id(chunk))
                    raise Damaged(f"{where}: what chunk {name} has {error}") from None


class DecryptedSource:
    """A `Source` over another one."""

    def __init__(self, inner: Callable[[], Source], decryption: Decryption, snapshot: Snapshot) -> None:
        """`inner` is called for each request."""
        self._inner = inner
        self.decryption = decryption
        self._plain = snapshot
        self._trailer_lock = Lock()  # guards the one below
        self._trailers: dict[tuple[int, int], bytes] = {}

    def fetch_chunk(self, chunk: int) -> bytearray:
        payload = bytearray(self._plain.chunk_payload_length(chunk))
        self.fetch_chunk_into(chunk, memoryview(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self._inner().fetch_chunk_into(chunk, destination)
        self.decryption.open_chunk(chunk, destination, destination)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        sealed = Wanted(
            {chunk: [*map(self.decryption.sealed, extents)] for chunk, extents in wanted.items()},
            wanted.is_shared_plan,
        )
        for arrival in self._inner().fetch_many(sealed):
            yield {chunk: self._opened(wanted[chunk], result) for chunk, result in arrival.items()}

    def _opened(self, extents: Sequence[ExtentRef], result: Slices | DieselfsError) -> Slices | DieselfsError:
        try:
            return self.decryption.opened(extents, result) if isinstance(result, Slices) else result
        except DieselfsError as error:
            return error

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        start, length = bytes_of(first, end, self._plain.chunk_payload_length(chunk))
        plain = bytearray(length)
        for extent in self.decryption.of_chunk(chunk):
            low, high = max(extent.offset, start), min(extent.offset + extent.length, start + length)
            if low < high:
                found, at = self._segments(extent, low, high)
                plain[low - start : high - start] = found[low - at : high - at]
        return memoryview(plain)

    def _segments(self, extent: ExtentRef, low: int, high: int) -> tuple[memoryview, int]:
        """The plain segments with the bytes of an extent at the payload offsets `low` up to `high`; and the offset of
        the first.
        """
        numbers = range((low - extent.offset) // SEGMENT_BYTES, segments_of(high - extent.offset))
        start = extent.offset + numbers.start * SEGMENT_BYTES
        stop = min(extent.offset + numbers.stop * SEGMENT_BYTES, extent.offset + extent.length)
        trailers = memoryview(self._trailers_of(extent))
        trailers = trailers[numbers.start * TRAILER_BYTES : numbers.stop * TRAILER_BYTES]
        sealed = memoryview(b"".join((self._bytes(extent.chunk, start, stop), trailers)))
        return self.decryption.opened_part(extent, sealed, stop - start, numbers.start), start

    def _trailers_of(self, extent: ExtentRef) -> bytes:
        key = extent.chunk, extent.offset
        with self._trailer_lock:
            found = self._trailers.get(key)
        if found is None:
            start = extent.offset + extent.length
            end = extent.offset + sealed_length(extent.length)
            found = bytes(self._bytes(extent.chunk, start, end))
            with self._trailer_lock:
                self._trailers[key] = found
                while len(self._trailers) > TRAILERS_KEPT:
                    del self._trailers[next(iter(self._trailers))]
        return found

    def _bytes(self, chunk: int, start: int, end: int) -> memoryview:
        """The ciphertext at the payload offsets `start` up to `end`."""
        blocks = block_range(start, end - start)
        at, _ = bytes_of(*blocks, self._plain.chunk_payload_length(chunk))
        return self._inner().fetch_blocks(chunk, *blocks)[start - at : end - at]

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self._inner().together(chunks)


class DecryptedServerSource(DecryptedSource, ServerSource):
    """A `ServerSource`, for callers with a cache of their own. Ciphertext in memory that an own server shares is
    decrypted from there. Plain memory is shared by `dlcmd cache` alone.
    """

    def __init__(self, inner: ServerSource, decryption: Decryption) -> None:
        DecryptedSource.__init__(self, lambda: inner, decryption, inner.snapshot)
        self.snapshot, self.metrics, self.inner = inner.snapshot, inner.metrics, inner

    @property
    def disk_bytes(self) -> int:
        return self.inner.disk_bytes

    def keeps(self, chunk: int) -> bool:
        return self.inner.keeps(chunk)

    def close(self) -> None:
        self.inner.close()

    def fetch_chunk(self, chunk: int) -> bytearray:
        # Not from shared memory: `dlcmd verify` wants what is stored now.
        payload = bytearray(self.snapshot.chunk_payload_length(chunk))
        DecryptedSource.fetch_chunk_into(self, chunk, memoryview(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        payload = self._shared(chunk, len(destination))
        if payload is None:
            super().fetch_chunk_into(chunk, destination)
        else:
            self.decryption.open_chunk(chunk, payload, destination)

    def fetch_segment(self, chunk: int) -> Segment:
        segment = Segment.create(self.snapshot.chunk_payload_length(chunk))
        try:
            self.fetch_chunk_into(chunk, segment.view)
            segment.seal()
        except BaseException:
            segment.close()
            raise
        return segment

    def shared(self, chunks: Sequence[int], wanted_bytes: int) -> dict[int, SharedMemory]:
        return {}

    def _shared(self, chunk: int, wanted_bytes: int) -> memoryview | None:
        """The ciphertext of a chunk, if an own server shares it."""
        found = self.inner.shared([chunk], wanted_bytes).get(chunk)
        return None if found is None else readonly_view(found.memory)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        return ServerSource.fetch_many(self, wanted)

    def fetch_joined(self, chunk: int, extents: Sequence[ExtentRef]) -> Slices:
        sealed = [*map(self.decryption.sealed, extents)]
        payload = self._shared(chunk, sum(extent.length for extent in sealed))
        if payload is None:
            return self.decryption.opened(extents, self.inner.fetch_joined(chunk, sealed))
        return self.decryption.opened(extents, Slices.of_payload(payload, sealed))
