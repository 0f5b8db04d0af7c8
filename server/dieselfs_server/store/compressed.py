"""Compressed chunks: the store has their payload as frames. This module sends requests.

Above this wrapper, a compressed chunk is read as any other, by offsets of its plain payload: a range is made from the
frames that it lies in. What the chunk takes in the store (`size`) and its file (`open_chunk`) stay as they are stored.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from dieselfs.chunk.format import PREAMBLE_BYTES, Preamble, decode_frames, decode_preamble
from dieselfs.chunk.frames import Frames
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Damaged
from dieselfs.limits import MIB
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import StoreWrapper, delete_chunks

KNOWN_MAX = 65_536
"""Limit of chunks of which is remembered whether they are compressed."""
TABLES_BYTES_MAX = 64 * MIB
"""Limit of their tables of frames in memory."""


@dataclass(slots=True)
class _Compressed:
    preamble: Preamble
    frames: Frames | None = None


class CompressedStore(StoreWrapper):
    """An `ObjectStore` over `store`, whose chunks may be compressed."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._lock = Lock()  # guards the two below
        self._known: dict[tuple[bytes, bytes], _Compressed | None] = {}
        self._tables_bytes = 0

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        key = dataset_id, chunk_id
        try:
            found = self._known[key]
        except KeyError:
            head = (
                None if offset else self.store.get_range(dataset_id, chunk_id, 0, min(length, PREAMBLE_BYTES))
            )
            found = self._find(key, head)
            if head is not None and len(head) == length:
                return head
        if found is None or offset + length <= found.preamble.payload_start:
            return self.store.get_range(dataset_id, chunk_id, offset, length)
        begin = found.preamble.payload_start
        head_bytes = max(begin - offset, 0)
        head = self.store.get_range(dataset_id, chunk_id, offset, head_bytes) if head_bytes else b""
        return head + self._read(key, found, offset + head_bytes - begin, length - head_bytes)

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self.delete_chunks(dataset_id, [chunk_id])

    def delete_chunks(self, dataset_id: bytes, chunk_ids: Iterable[bytes]) -> None:
        chunk_ids = list(chunk_ids)
        with self._lock:
            for chunk_id in chunk_ids:
                self._known.pop((dataset_id, chunk_id), None)
        delete_chunks(self.store, dataset_id, chunk_ids)

    def stored_payload(self, dataset_id: bytes, chunk_id: bytes) -> tuple[Frames, bytes] | None:
        """The frames of a chunk, as they are stored; None if it is not compressed. Raises as `get_range`."""
        key = dataset_id, chunk_id
        found = self._known[key] if key in self._known else self._find(key, None)
        if found is None:
            return None
        start, length = found.preamble.payload_start, found.preamble.compressed_length
        return self._frames(key, found), self.store.get_range(dataset_id, chunk_id, start, length)

    def _find(self, key: tuple[bytes, bytes], head: bytes | None) -> _Compressed | None:
        """Whether a chunk is compressed, which is remembered. `head`: its preamble, if it was read."""
        if head is None or len(head) < PREAMBLE_BYTES:
            try:
                head = self.store.get_range(*key, 0, PREAMBLE_BYTES)
            except Damaged:  # no chunk
                return None
        try:
            preamble = decode_preamble(head, f"chunk {chunk_name(key[1])}", key[1])
        except Damaged:
            return None
        found = _Compressed(preamble) if preamble.compressed_length else None
        with self._lock:
            self._make_room()
            self._known[key] = found
        return found

    def _make_room(self) -> None:
        if len(self._known) >= KNOWN_MAX or self._tables_bytes > TABLES_BYTES_MAX:
            self._known.clear()
            self._tables_bytes = 0

    def _frames(self, key: tuple[bytes, bytes], found: _Compressed) -> Frames:
        """The frames of a compressed chunk, which are read once. Raises Damaged, NotFound, Unavailable."""
        if found.frames is None:
            packed = self.store.get_range(*key, PREAMBLE_BYTES, found.preamble.header_length)
            frames = decode_frames(found.preamble, packed, f"chunk {chunk_name(key[1])}")
            with self._lock:
                found.frames = frames
                self._tables_bytes += frames.table_bytes
                self._make_room()
                self._known[key] = found
            return frames
        return found.frames

    def _read(self, key: tuple[bytes, bytes], found: _Compressed, offset: int, length: int) -> bytes:
        """A range of the plain payload. Raises Damaged, NotFound, Unavailable."""
        begin, frames = found.preamble.payload_start, self._frames(key, found)
        where = f"chunk {chunk_name(key[1])}: offset {begin}"
        read = self.store.get_range
        return frames.part(lambda at, size: read(*key, begin + at, size), offset, length, where)
