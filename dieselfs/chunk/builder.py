"""Packs entries into a chunk. No I/O.

A builder collects entries; `seal` makes them final. `SealedChunk.encode` makes the bytes, once versions are reserved
and an ID is chosen; it is called again with another ID if that one is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dieselfs.chunk.cost import FoldersAbove, depth_fault
from dieselfs.chunk.format import COLUMN_TYPES, MODE_MAX, VERSION_MAX, ChunkHeader, Op, Preamble
from dieselfs.chunk.frames import Compression, Frames
from dieselfs.chunk.source import AttachedSource
from dieselfs.digests import NO_DIGEST, Buffer, digest_of, extent_digest_of
from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    CHUNK_ENTRIES_MAX,
    CHUNK_EXTENTS_PER_PAYLOAD_MAX,
    CHUNK_PATH_BYTES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    CHUNK_TARGET_BYTES,
    FILE_BYTES_MAX,
    PATH_BYTES_MAX,
)
from dieselfs.names import is_part, path_fault, printable

# The path, then one value for each of COLUMN_TYPES, in that order. Version 0: one of those reserved for the chunk.
# A plain tuple, because one is made per uploaded file, and a named tuple takes a third of the time.
_Entry = tuple[bytes, int, int, int, int, int, int, int, bytes, int]

_DELETE, _FILE, _DIRECTORY, _SYMLINK = map(int, (Op.DELETE, Op.FILE, Op.DIRECTORY, Op.SYMLINK))
_TIME_NS_MIN, _TIME_NS_MAX = -(1 << 63), (1 << 63) - 1


class FileExtent(NamedTuple):
    """An extent to add, without a place in a payload."""

    path: bytes
    mode: int
    mtime_ns: int
    size: int
    place: int
    length: int
    digest: bytes
    version: int


@dataclass(frozen=True, slots=True)
class SealedChunk:
    """A chunk with final entries, without ID and versions. With a `source`, it is attached to it; the payload of a
    source that is a chunk is not needed. With `frames`, it is compressed, and `stored` has the frames of the payload.
    """

    entries: Sequence[_Entry]
    targets: bytes
    payload: bytes
    source: AttachedSource | None = None
    frames: Frames | None = None
    stored: bytes = b""

    @property
    def whole_entries(self) -> int:
        """How many entries are complete in this chunk: all but extents of files that continue in another chunk."""
        return sum(place + length >= size for _, _, _, _, size, place, _, length, _, _ in self.entries)

    @property
    def extents_bytes(self) -> int:
        """Of all files, those that share bytes too."""
        return sum(entry[7] for entry in self.entries if entry[1] == _FILE)

    def compressed(self, compression: Compression) -> "SealedChunk":
        """The same chunk with a compressed payload; itself if that would not be smaller, or belongs to a source."""
        if self.source is not None:
            return self
        extents = sorted((entry[6], entry[7]) for entry in self.entries if entry[1] == _FILE and entry[7])
        packed = compression.packed(self.payload, extents)
        return self if packed is None else replace(self, frames=packed[0], stored=packed[1])

    def encode(
        self, chunk_id: bytes, dataset: str, dataset_id: bytes, first_version: int
    ) -> tuple[bytes, bytes]:
        """`(preamble and header, stored payload)`; the object is their concatenation. An attached chunk has no payload.

        Entry `i` gets version `first_version + i`, unless it was added with a version of its own.
        """
        if not 0 < first_version <= VERSION_MAX - len(self.entries):
            raise InvalidInput(f"versions from {first_version} on are out of range")
        paths, *numbers = list(zip(*self.entries, strict=True)) or [()] * (1 + len(COLUMN_TYPES))
        columns = {
            name: np.array(values, dtype)
            for (name, dtype), values in zip(COLUMN_TYPES.items(), numbers, strict=True)
        }
        own = columns["versions"]
        columns["versions"] = np.where(own == 0, np.arange(len(own), dtype=np.uint64) + first_version, own)
        header = ChunkHeader(
            dataset, dataset_id, list(paths), self.targets, **columns, source=self.source, frames=self.frames
        ).encode()
        if self.source is not None and self.source.is_chunk:
            length, digest = self.source.size_bytes - self.source.offset, self.source.payload_digest
        else:
            length, digest = len(self.payload), digest_of(self.payload)
        preamble = Preamble(
            chunk_id=chunk_id,
            header_length=len(header),
            payload_length=length,
            payload_digest=digest,
            header_digest=digest_of(header),
            is_attached=self.source is not None,
            compressed_length=len(self.stored),
        )
        stored = self.stored if self.frames else self.payload
        return preamble.encode() + header, b"" if self.source else stored


class ChunkBuilder:
    """Collects entries until the chunk is full. For one thread.

    The caller seals when `is_full`; a full builder refuses entries only at the hard limits. A refused entry raises
    InvalidInput and leaves the builder unchanged. An entry with a `version` keeps it (extents of one file, entries that
    purge copies); version 0 stands for the next of those reserved for the chunk.
    """

    def __init__(
        self, target_bytes: int = CHUNK_TARGET_BYTES, is_of_old: bool = False, is_sharing: bool = False
    ) -> None:
        """`is_of_old`: for copies of entries that are stored already, with their paths. `is_sharing`: extents with
        equal bytes share them, as often as a chunk may.
        """
        if not 0 < target_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
            raise InvalidInput(f"chunk size must be between 1 and {CHUNK_PAYLOAD_BYTES_MAX} bytes")
        self._target_bytes = target_bytes
        self._is_of_old = is_of_old
        self.is_sharing = is_sharing
        self.put_off: Callable[[FileExtent], bool] | None = None
        """Whether an extent that is added is left out, as its bytes are elsewhere."""
        self._memory = memoryview(b"")  # given out by `space`; kept from chunk to chunk
        self._clear()

    def _clear(self) -> None:
        self._entries: list[_Entry] = []
        self._contents: list[Buffer] = []
        self._shared: dict[bytes, tuple[int, Buffer]] = {}  # offset and bytes by digest
        self._extents_bytes = 0
        self._given_bytes = 0
        self._targets: list[bytes] = []
        self._target_end = 0
        self._path_bytes = 0  # of paths and link targets
        self._folders = FoldersAbove()
        self._has_folder_room = True
        # Of the last entry: most entries follow another one of their folder. No folder is called so.
        self._last_folder = b"/"
        self._checked_folder = b"/"  # the same, if the path of an entry in it was checked
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def room_bytes(self) -> int:
        """Payload bytes until the chunk is full."""
        return 0 if self.is_full else self._target_bytes - self.payload_bytes

    @property
    def is_full(self) -> bool:
        return self.payload_bytes >= self._target_bytes or self.is_crowded

    @property
    def is_crowded(self) -> bool:
        """Whether no other entry fits, however few bytes it adds."""
        return (
            len(self._entries) >= CHUNK_ENTRIES_MAX
            or self._path_bytes >= CHUNK_PATH_BYTES_MAX - 2 * PATH_BYTES_MAX
            or not self._has_folder_room
        )

    def has_room(self, data: Buffer) -> bool:
        """Whether an extent fits, or can share bytes that are here."""
        if self.room_bytes >= len(data):
            return True
        return not self.is_crowded and self._shared_offset(data, extent_digest_of(data)) is not None

    def _shared_offset(self, data: Buffer, digest: bytes) -> int | None:
        """Where these bytes are in the payload, if a chunk may have them for another file."""
        offset, known = self._shared.get(digest, (0, b""))
        extents_bytes = self._extents_bytes + len(data)
        if not known or extents_bytes > CHUNK_EXTENTS_PER_PAYLOAD_MAX * self.payload_bytes:
            return None
        return offset if bytes(known) == bytes(data) else None

    def space(self, size: int) -> memoryview:
        """Memory for the data of a file that is added next. It is used again after the chunk is sealed: memory that
        the kernel gives and takes back for each file takes longer than reading the file.
        """
        start, end = self._given_bytes, self._given_bytes + size
        if end > len(self._memory):
            room_bytes = min(self._target_bytes, CHUNK_TARGET_BYTES) + CHUNK_ENTRIES_MAX
            if start or size > room_bytes:
                return memoryview(bytearray(size))
            self._memory = memoryview(bytearray(room_bytes))
        self._given_bytes = end
        return self._memory[start:end]

    def add_file(
        self,
        path: bytes,
        data: Buffer,
        mode: int,
        mtime_ns: int,
        size: int | None = None,
        place: int = 0,
        version: int = 0,
        offset: int | None = None,
    ) -> None:
        """Add a whole file, or its extent that begins at `place` (with the file's `size` and `version`).

        `data` is referenced, not copied, until the chunk is sealed. With an `offset`, it is already there in the
        payload that will be passed to `seal`.
        """
        length = len(data)
        if size is None:
            size = length
        digest = extent_digest_of(data)
        if self.is_sharing and offset is None:
            offset = self._shared_offset(data, digest)
        if offset is None and self.put_off is not None:
            extent = FileExtent(path, mode, mtime_ns, size, place, length, digest, version)
            if self.put_off(extent):
                return
        at = self.payload_bytes if offset is None else offset
        end = at + length
        if (
            end > CHUNK_PAYLOAD_BYTES_MAX
            or not 0 <= place <= size - length
            or (size and not length)
            or size > FILE_BYTES_MAX
        ):
            is_full = end > CHUNK_PAYLOAD_BYTES_MAX
            fault = (
                "the chunk has no room"
                if is_full
                else "the extent is empty or outside of the file, or the file is too large"
            )
            raise InvalidInput(
                f"{printable(path)}: {length} bytes at {place} of a file of {size} bytes: {fault}"
            )
        self._add(path, _FILE, mode, mtime_ns, size, place, at, length, digest, version)
        self._extents_bytes += length
        if offset is None:
            self._contents.append(data)
            if self.is_sharing and length:
                self._shared[digest] = at, data
        if end > self.payload_bytes:
            self.payload_bytes = end

    def add_extent(
        self,
        path: bytes,
        mode: int,
        mtime_ns: int,
        size: int,
        place: int,
        offset: int,
        length: int,
        digest: bytes,
        version: int = 0,
    ) -> None:
        """Add an extent of a payload that is another chunk's: its bytes have this digest, and are not read."""
        self._add(path, _FILE, mode, mtime_ns, size, place, offset, length, digest, version)

    def add_directory(self, path: bytes, mode: int, mtime_ns: int, version: int = 0) -> None:
        self._add(path, _DIRECTORY, mode, mtime_ns, 0, 0, 0, 0, NO_DIGEST, version)

    def add_symlink(self, path: bytes, target: bytes, mode: int, mtime_ns: int, version: int = 0) -> None:
        if not 0 < len(target) <= PATH_BYTES_MAX or b"\0" in target:
            raise InvalidInput(f"{printable(path)}: link target is empty, too long, or holds a NUL byte")
        digest = extent_digest_of(target)
        self._add(path, _SYMLINK, mode, mtime_ns, 0, 0, self._target_end, len(target), digest, version)
        self._targets.append(target)
        self._target_end += len(target)

    def add_delete(self, path: bytes, version: int = 0) -> None:
        self._add(path, _DELETE, 0, 0, 0, 0, 0, 0, NO_DIGEST, version)

    def _add(
        self,
        path: bytes,
        op: int,
        mode: int,
        mtime_ns: int,
        size: int,
        place: int,
        offset: int,
        length: int,
        digest: bytes,
        version: int,
    ) -> None:
        entries = self._entries
        path_bytes = self._path_bytes + len(path) + (length if op == _SYMLINK else 0)
        if path_bytes > CHUNK_PATH_BYTES_MAX or len(entries) >= CHUNK_ENTRIES_MAX:
            raise InvalidInput(
                f"{printable(path)}: the chunk is full: it holds at most {CHUNK_ENTRIES_MAX} entries and "
                f"{CHUNK_PATH_BYTES_MAX} bytes of paths"
            )
        folder, _, name = path.rpartition(b"/")
        if folder != self._checked_folder or len(path) > PATH_BYTES_MAX or not is_part(name):
            fault = path_fault(path) or (None if self._is_of_old or op == _DELETE else depth_fault(path))
            if fault is not None:
                raise InvalidInput(f"{fault}: {printable(path[:200])}")
        if not path and op != _DIRECTORY:
            raise InvalidInput("the root of a dataset can only be a folder; give the file a name")
        if not 0 <= version <= VERSION_MAX:
            raise InvalidInput(f"{printable(path)}: version {version} is out of range")
        if not _TIME_NS_MIN <= mtime_ns <= _TIME_NS_MAX:  # a file system may have years after 2262
            mtime_ns = _TIME_NS_MIN if mtime_ns < 0 else _TIME_NS_MAX
        entries.append((path, op, mode & MODE_MAX, mtime_ns, size, place, offset, length, digest, version))
        self._path_bytes = path_bytes
        if folder != self._last_folder or not self._has_folder_room:
            self._last_folder = folder
            self._checked_folder = b"/" if op == _DELETE else folder
            self._folders.add(path)
            self._has_folder_room = self._folders.have_room(len(entries))

    def seal(self, payload: bytes | None = None, source: AttachedSource | None = None) -> SealedChunk:
        """The chunk of all entries so far; the builder is empty afterwards.

        `payload`: what the offsets of the files refer to; `source`: has this payload, and the chunk is attached to it.
        """
        targets = b"".join(self._targets)
        content = b"".join(self._contents) if payload is None else payload
        sealed = SealedChunk(tuple(self._entries), targets, content, source)
        self._clear()
        return sealed
