"""Packs entries into a chunk. No I/O.

A builder collects; `seal` fixes the entries; `SealedChunk.encode` gives the bytes, once the server has handed out
versions and an ID has been chosen (a second time, should that ID turn out to be taken).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from dieselfs.chunk.format import MODE_MAX, Buffer, ChunkHeader, Op, Preamble
from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    CHUNK_ENTRIES_MAX,
    CHUNK_PATH_BYTES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    CHUNK_TARGET_BYTES,
    PATH_BYTES_MAX,
)
from dieselfs.names import check_path, printable


class _Entry(NamedTuple):
    path: bytes
    op: int
    mode: int
    mtime_ns: int
    size: int
    place: int
    offset: int
    length: int
    checksum: int
    version: int  # 0: taken from the versions reserved for the chunk


@dataclass(frozen=True, slots=True)
class SealedChunk:
    """A chunk whose entries are fixed, but which has no ID and no versions yet."""

    entries: Sequence[_Entry]
    targets: bytes
    payload: bytes

    def encode(
        self, chunk_id: bytes, dataset: str, dataset_id: bytes, first_version: int
    ) -> tuple[bytes, bytes]:
        """`(preamble and header, payload)`; the object is the one behind the other.

        Entry `i` gets version `first_version + i`, unless it was added with a version of its own.
        """
        columns = list(zip(*self.entries, strict=True)) or [()] * len(_Entry._fields)
        paths, ops, modes, mtimes_ns, sizes, places, offsets, lengths, checksums, own_versions = columns
        given = np.array(own_versions, np.uint64)
        reserved = np.arange(first_version, first_version + len(given), dtype=np.uint64)
        header = ChunkHeader(
            dataset,
            dataset_id,
            list(paths),
            self.targets,
            np.array(ops, np.uint8),
            np.array(modes, np.uint32),
            np.array(mtimes_ns, np.int64),
            np.array(sizes, np.uint64),
            np.array(places, np.uint64),
            np.array(offsets, np.uint32),
            np.array(lengths, np.uint32),
            np.array(checksums, np.uint64),
            np.where(given == 0, reserved, given),
        ).encode()
        preamble = Preamble(
            chunk_id, len(header), len(self.payload), xxh3_128_intdigest(self.payload), xxh3_64_intdigest(header)
        )
        return preamble.encode() + header, self.payload


class ChunkBuilder:
    """Collects entries until the chunk is full. Not shared between threads.

    The caller seals when `is_full`; what it adds to a full builder is refused only at the hard limits.
    """

    def __init__(self, target_bytes: int = CHUNK_TARGET_BYTES) -> None:
        if not 0 < target_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
            raise InvalidInput(f"chunk size must be between 1 and {CHUNK_PAYLOAD_BYTES_MAX} bytes")
        self._target_bytes = target_bytes
        self._clear()

    def _clear(self) -> None:
        self._entries: list[_Entry] = []
        self._pieces: list[Buffer] = []
        self._targets = bytearray()
        self._path_bytes = 0
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def room_bytes(self) -> int:
        """Payload that still fits before the chunk has its target size."""
        return max(self._target_bytes - self.payload_bytes, 0)

    @property
    def is_full(self) -> bool:
        return (
            self.payload_bytes >= self._target_bytes
            or len(self._entries) >= CHUNK_ENTRIES_MAX
            or self._path_bytes >= CHUNK_PATH_BYTES_MAX - 2 * PATH_BYTES_MAX
        )

    def add_file(
        self,
        path: bytes,
        data: bytes,
        mode: int,
        mtime_ns: int,
        size: int | None = None,
        place: int = 0,
        version: int = 0,
    ) -> None:
        """Add a whole file, or the piece of one that begins at `place` (then with the file's `size` and `version`).

        `data` is kept, not copied, until the chunk is encoded. Raises InvalidInput for a bad path.
        """
        length = len(data)
        if self.payload_bytes + length > CHUNK_PAYLOAD_BYTES_MAX:
            raise InvalidInput(f"{printable(path)}: a piece of {length} bytes does not fit into this chunk")
        if size is None:
            size = length
        if place + length > size or (length == 0 and size != 0):
            raise InvalidInput(f"{printable(path)}: {length} bytes at {place} are no piece of a {size}-byte file")
        self._add(path, Op.FILE, mode, mtime_ns, size, place, self.payload_bytes, data, version)
        self._pieces.append(data)
        self.payload_bytes += length

    def add_directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        self._add(path, Op.DIRECTORY, mode, mtime_ns)

    def add_symlink(self, path: bytes, target: bytes, mode: int, mtime_ns: int) -> None:
        if not 0 < len(target) <= PATH_BYTES_MAX or b"\0" in target:
            raise InvalidInput(f"{printable(path)}: link target is empty, too long, or holds a NUL byte")
        self._add(path, Op.SYMLINK, mode, mtime_ns, 0, 0, len(self._targets), target)
        self._targets += target
        self._path_bytes += len(target)

    def add_delete(self, path: bytes) -> None:
        self._add(path, Op.DELETE, 0, 0)

    def _add(
        self,
        path: bytes,
        op: Op,
        mode: int,
        mtime_ns: int,
        size: int = 0,
        place: int = 0,
        offset: int = 0,
        data: bytes | None = None,
        version: int = 0,
    ) -> None:
        if len(self._entries) >= CHUNK_ENTRIES_MAX:
            raise InvalidInput(f"a chunk holds at most {CHUNK_ENTRIES_MAX} entries")
        check_path(path)
        if not path and op is not Op.DIRECTORY:
            raise InvalidInput("the root of a dataset can only be a folder; give the file a name")
        length, checksum = (0, 0) if data is None else (len(data), xxh3_64_intdigest(data))
        self._entries.append(
            _Entry(path, int(op), mode & MODE_MAX, mtime_ns, size, place, offset, length, checksum, version)
        )
        self._path_bytes += len(path)

    def seal(self) -> SealedChunk:
        """The chunk as it stands; the builder is empty afterwards."""
        sealed = SealedChunk(tuple(self._entries), bytes(self._targets), b"".join(self._pieces))
        self._clear()
        return sealed
