"""Decrypts the bytes of an encrypted dataset, after the source below has verified the ciphertext. This module waits for
its source.

Everything below stays encrypted: bytes from servers, on the disk of the node, in the memory that nodes of a job pool,
and that processes share. Everything above is plain: the caches of one process.

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
from dieselfs.chunk.segment import Segment
from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.encryption.segments import (
    SEGMENT_BYTES,
    TRAILER_BYTES,
    extent_context,
    open_extent,
    open_segment,
    sealed_length,
    segments_of,
)
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.names import printable
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.snapshot.storage_order import StorageOrder
from dieselfs.snapshot.subtree import files_below
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
        self._make = cipher
        self._cipher: DatasetCipher | None = None
        order = StorageOrder.of(snapshot, files_below(snapshot))
        self._extents: Numbers = order.extents
        self._owners: Numbers = order.owners
        chunks = snapshot.column("extent_chunks")[order.extents].astype(np.int64)
        offsets = snapshot.column("extent_offsets")[order.extents].astype(np.int64)
        self._keys: Numbers = chunks << 32 | offsets

    @property
    def _key(self) -> bytes:
        if self._cipher is None:
            self._cipher = self._make()
        return self._cipher.data_key

    def of_chunk(self, chunk: int) -> list[tuple[int, ExtentRef]]:
        """The nodes and the extents in a chunk, by offset."""
        first, end = np.searchsorted(self._keys, [chunk << 32, (chunk + 1) << 32]).tolist()
        refs = self._snapshot.extent_refs(self._extents[first:end])
        return list(zip(self._owners[first:end].tolist(), refs, strict=True))

    def node(self, extent: ExtentRef) -> int:
        """The file of an extent of the snapshot."""
        place = int(np.searchsorted(self._keys, extent.chunk << 32 | extent.offset))
        return int(self._owners[place])

    def sealed(self, extent: ExtentRef) -> ExtentRef:
        """The extent as it is stored."""
        return extent._replace(place=sealed_length(extent.place), length=sealed_length(extent.length))

    def context(self, node: int, extent: ExtentRef) -> bytes:
        status = self._snapshot.stat(node)
        path = self._full_path(node)
        return extent_context(path, status.size, extent.place, extent.length, status.mtime_ns)

    def _full_path(self, node: int) -> bytes:
        folder, path = self._snapshot.folder, self._snapshot.path(node)
        return folder + b"/" + path if folder else path

    def opened(self, node: int, extent: ExtentRef, content: bytes | memoryview) -> bytes:
        """The plain bytes of an extent. Raises Damaged, which names the file."""
        try:
            return open_extent(self._key, self.context(node, extent), content, extent.length)
        except Damaged as error:
            raise self.damaged(node, extent, error) from None

    def opened_segment(
        self, node: int, extent: ExtentRef, number: int, body: memoryview, trailer: memoryview
    ) -> bytes:
        """As `opened`, of one segment."""
        try:
            return open_segment(self._key, self.context(node, extent), number, body, trailer)
        except Damaged as error:
            raise self.damaged(node, extent, error) from None

    def damaged(self, node: int, extent: ExtentRef, error: Damaged) -> Damaged:
        chunk = chunk_name(self._snapshot.chunk_id(extent.chunk))
        path = printable(self._snapshot.path(node))
        return Damaged(f"dl://{self._snapshot.location}/{path}: what chunk {chunk} has {error}")


class DecryptedSource:
    """A `Source` over another one."""

    def __init__(self, inner: Callable[[], Source], decryption: Decryption, snapshot: Snapshot) -> None:
        """`inner` is called for each request."""
        self._inner = inner
        self._decryption = decryption
        self._plain = snapshot
        self._trailer_lock = Lock()  # guards the one below
        self._trailers: dict[tuple[int, int], bytes] = {}

    def fetch_chunk(self, chunk: int) -> bytearray:
        payload = bytearray(self._plain.chunk_payload_length(chunk))
        self.fetch_chunk_into(chunk, memoryview(payload))
        return payload

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self._inner().fetch_chunk_into(chunk, destination)
        opened = self._decryption.opened
        with METER.timed("verification"):
            for node, extent in self._decryption.of_chunk(chunk):
                start = extent.offset
                content = opened(node, extent, destination[start : start + sealed_length(extent.length)])
                destination[start : start + extent.length] = content

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        sealed = Wanted(
            {chunk: [*map(self._decryption.sealed, extents)] for chunk, extents in wanted.items()},
            wanted.is_shared_plan,
        )
        for arrival in self._inner().fetch_many(sealed):
            yield {
                chunk: result if isinstance(result, DieselfsError) else self._opened(wanted[chunk], result)
                for chunk, result in arrival.items()
            }

    def _opened(self, extents: Sequence[ExtentRef], slices: Slices) -> Slices | DieselfsError:
        decryption = self._decryption
        try:
            with METER.timed("verification"):
                parts = [
                    decryption.opened(decryption.node(extent), extent, content)
                    for extent, content in zip(extents, slices, strict=True)
                ]
        except DieselfsError as error:
            return error
        return Slices.joined(memoryview(b"".join(parts)), extents)

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        start, length = bytes_of(first, end, self._plain.chunk_payload_length(chunk))
        plain = bytearray(length)
        for node, extent in self._decryption.of_chunk(chunk):
            low, high = max(extent.offset, start), min(extent.offset + extent.length, start + length)
            if low < high:
                found, at = self._segments(node, extent, low, high)
                plain[low - start : high - start] = found[low - at : high - at]
        return memoryview(plain)

    def _segments(self, node: int, extent: ExtentRef, low: int, high: int) -> tuple[bytes, int]:
        """The plain segments with the bytes of an extent at the payload offsets `low` up to `high`; and the offset of
        the first.
        """
        numbers = range((low - extent.offset) // SEGMENT_BYTES, segments_of(high - extent.offset))
        start = extent.offset + numbers.start * SEGMENT_BYTES
        stop = min(extent.offset + numbers.stop * SEGMENT_BYTES, extent.offset + extent.length)
        bodies, trailers = self._bytes(extent.chunk, start, stop), self._trailers_of(extent)
        parts = []
        for number in numbers:
            at = (number - numbers.start) * SEGMENT_BYTES
            trailer = memoryview(trailers)[number * TRAILER_BYTES : (number + 1) * TRAILER_BYTES]
            body = bodies[at : at + SEGMENT_BYTES]
            parts.append(self._decryption.opened_segment(node, extent, number, body, trailer))
        return b"".join(parts), start

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
    """A `ServerSource`, for callers with a cache of their own; it shares no memory of others, which is encrypted."""

    def __init__(self, inner: ServerSource, decryption: Decryption) -> None:
        DecryptedSource.__init__(self, lambda: inner, decryption, inner.snapshot)
        self.snapshot, self.metrics, self.inner = inner.snapshot, inner.metrics, inner
        self.decryption = decryption

    @property
    def disk_bytes(self) -> int:
        return self.inner.disk_bytes

    def keeps(self, chunk: int) -> bool:
        return self.inner.keeps(chunk)

    def close(self) -> None:
        self.inner.close()

    def fetch_segment(self, chunk: int) -> Segment:
        return self.inner.fetch_segment(chunk)

    def shared(self, chunks: Sequence[int], wanted_bytes: int) -> dict[int, SharedMemory]:
        return {}

    def fetch_joined(self, chunk: int, extents: Sequence[ExtentRef]) -> Slices:
        result = self._opened(
            extents, self.inner.fetch_joined(chunk, [*map(self.decryption.sealed, extents)])
        )
        if isinstance(result, DieselfsError):
            raise result
        return result


def decryption_of(client: ServerClient, snapshot: Snapshot) -> Decryption | None:
    """What decrypts the bytes of a snapshot; None if they are not encrypted. The key is asked for at the first use."""
    if not snapshot.header.is_encrypted:
        return None

    def cipher() -> DatasetCipher:
        found = client.known_cipher(snapshot.dataset)
        if found is None:
            raise Damaged(f"dl://{snapshot.dataset} was encrypted, and is not any more")
        return found

    return Decryption(snapshot, cipher)


def readable(source: ServerSource, client: ServerClient) -> ServerSource:
    """A source of plain bytes over `source`: itself, unless the dataset is encrypted."""
    decryption = decryption_of(client, source.snapshot)
    return source if decryption is None else DecryptedServerSource(source, decryption)


def decrypted(inner: Callable[[], Source], reader: ServerSource) -> DecryptedSource | None:
    """A source of plain bytes over the nodes of a job; None if the dataset is not encrypted. `reader`: the source of
    other chunks.
    """
    if not isinstance(reader, DecryptedServerSource):
        return None
    return DecryptedSource(inner, reader.decryption, reader.snapshot)
