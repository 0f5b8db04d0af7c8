"""Compressed payloads: frames of zstd, each of some small files or of a part of a large one. No I/O.

Offsets, lengths and digests of extents stay those of the plain payload. A frame is decompressed without the others, so
a file costs the frames that it lies in. Small files share a dictionary, which each chunk that uses it has. Frames that
do not shrink are stored as they are.

Frames are hostile bytes: a frame gets memory for the plain length in the table of the chunk, if it states the same.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from dieselfs.arrays import Numbers
from dieselfs.digests import DIGEST_BYTES, Buffer, digest_of
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.fields import FieldsFault, unpack_fields
from dieselfs.limits import CHUNK_ENTRIES_MAX, KIB, MIB

if TYPE_CHECKING:
    import zstandard  # imported where it is used: most processes read plain chunks

FRAME_FIELDS: dict[str, type] = {
    "frame_ends": bytes,
    "frame_stored_ends": bytes,
    "frame_dictionary": bytes,
    "frame_level": int,
    "frame_digest": bytes,
}
"""Fields of the header of a compressed chunk, beside those of all chunks."""

FRAME_BYTES_MAX = 1 * MIB
"""Of the plain bytes of a frame."""
FRAMES_MAX = 2 * CHUNK_ENTRIES_MAX
DICTIONARY_BYTES_MAX = 112 * KIB
_TABLE_BYTES_MAX = 8 * FRAMES_MAX + DICTIONARY_BYTES_MAX + KIB
LEVEL_MAX = 22
DEFAULT_LEVEL = 3

FRAME_BYTES = 256 * KIB
"""Parts of a large extent have this size; a read of some of its bytes decompresses one."""
FRAME_BYTES_MIN = 4 * KIB
"""Smaller files share a frame until they have this size together."""
SHRUNK_SHARE_MAX = 0.95
"""A frame, or a chunk, is compressed if it takes at most this share of its plain bytes."""

DICTIONARY_BYTES = 32 * KIB
DICTIONARY_FRAME_BYTES_MAX = 16 * KIB
"""A chunk whose frames have more plain bytes on average gains little from a dictionary."""
DICTIONARY_PAYLOAD_BYTES_MIN = 16 * DICTIONARY_BYTES
"""Nor does a chunk with less."""
SAMPLED_EVERY = 4
"""One file in this number trains the dictionary: all of 4 MiB take 5 times as long, and barely shrink more."""
_WINDOW_BYTES_MAX = 8 * MIB
_SEGMENT, _MATCH = 64, 8
"""Parameters of the training (COVER); without them, zstd tries many."""
_TABLE_LENGTH = struct.Struct("<I")
_HEAD_BYTES = 64 * KIB
"""Read at once from the beginning of a packed payload: the table of most chunks of 4 MiB, with its dictionary."""

Read = Callable[[int, int], Buffer]
"""Returns a range: offset and length in bytes."""


def new_room(length_bytes: int) -> memoryview:
    return memoryview(bytearray(length_bytes))


@dataclass(frozen=True, eq=False)
class Frames:
    """The table of the frames of a payload, with their ends in the plain and in the stored payload, shape (n,) both.

    `dictionary`: may be empty. `level`: with which it was compressed, for copies. `digest`: of the stored payload.
    """

    ends: Numbers
    stored_ends: Numbers
    dictionary: bytes
    level: int
    digest: bytes

    @property
    def table_bytes(self) -> int:
        """What it takes in memory, without the dictionary, which the chunks of a dataset share."""
        return int(self.ends.nbytes + self.stored_ends.nbytes)

    def fields(self) -> dict[str, bytes | int]:
        return {
            "frame_ends": self.ends.astype("<u4").tobytes(),
            "frame_stored_ends": self.stored_ends.astype("<u4").tobytes(),
            "frame_dictionary": self.dictionary,
            "frame_level": self.level,
            "frame_digest": self.digest,
        }

    @classmethod
    def of_fields(cls, fields: dict[str, Any], payload_length: int, stored_length: int) -> "Frames":
        """The table for payloads of these lengths. Raises FieldsFault for values that cannot be."""
        ends, stored_ends = fields["frame_ends"], fields["frame_stored_ends"]
        if len(ends) % 4 or len(ends) != len(stored_ends) or len(ends) > 4 * FRAMES_MAX:
            raise FieldsFault(f"ends of frames: columns of {len(ends)} and {len(stored_ends)} bytes")
        found = cls(
            np.frombuffer(ends, "<u4").astype(np.int64),
            np.frombuffer(stored_ends, "<u4").astype(np.int64),
            _shared(fields["frame_dictionary"]),
            fields["frame_level"],
            fields["frame_digest"],
        )
        lengths, stored = np.diff(found.ends, prepend=0), np.diff(found.stored_ends, prepend=0)
        if found.ends[-1:].tolist() != [payload_length] or found.stored_ends[-1:].tolist() != [stored_length]:
            raise FieldsFault("the frames end elsewhere than the payload")
        if lengths.min() < 1 or lengths.max() > FRAME_BYTES_MAX:
            raise FieldsFault(f"a frame has no bytes, or more than {FRAME_BYTES_MAX}")
        if stored.min() < 1 or bool((stored > lengths).any()):
            raise FieldsFault("a stored frame has no bytes, or more than the plain one")
        if len(found.dictionary) > DICTIONARY_BYTES_MAX or not 0 < found.level <= LEVEL_MAX:
            raise FieldsFault("dictionary or level of the frames out of range")
        if len(found.digest) != DIGEST_BYTES:
            raise FieldsFault(f"digest of the frames of {len(found.digest)} bytes")
        return found

    def spanning(self, offset: int, length: int) -> tuple[int, int]:
        """The numbers of the first frame with a byte of a range of the plain payload, and of the one behind."""
        first = int(np.searchsorted(self.ends, offset, side="right"))
        return first, max(first, int(np.searchsorted(self.ends, offset + length)) + 1 if length else first)

    def start(self, number: int) -> tuple[int, int]:
        """Where a frame begins in the plain and in the stored payload."""
        return (int(self.ends[number - 1]), int(self.stored_ends[number - 1])) if number else (0, 0)

    def plain(self, stored: Buffer, where: str, first: int = 0, end: int | None = None) -> Iterator[Buffer]:
        """The plain bytes of the frames from `first` up to `end`, by default of all; `stored` has these frames alone.
        Raises Damaged, which begins with `where`.
        """
        decompressor, view = None, memoryview(stored)
        (at, begin), numbers = self.start(first), slice(first, end)
        base = begin
        for stop, stored_stop in zip(
            self.ends[numbers].tolist(), self.stored_ends[numbers].tolist(), strict=True
        ):
            length, packed = stop - at, view[begin - base : stored_stop - base]
            at, begin = stop, stored_stop
            if len(packed) == length:
                yield packed
                continue
            if decompressor is None:
                decompressor = _decompressor(self.dictionary, where)
            yield _unpacked(decompressor, packed, length, f"{where}: frame that ends at {stop}")

    def part(self, read: Read, offset: int, length: int, where: str) -> bytes:
        """A range of the plain payload, from the frames that it lies in; `read` returns ranges of the stored payload.
        Raises Damaged, which begins with `where`, and as `read`.
        """
        if offset + length > self.ends[-1]:
            raise Damaged(f"{where}: {length} bytes at {offset} of a payload of {self.ends[-1]}")
        first, end = self.spanning(offset, length)
        (plain_start, start), (_, stop) = self.start(first), self.start(end)
        if start == stop:
            return b""
        plain = b"".join(self.plain(read(start, stop - start), where, first, end))
        at = offset - plain_start
        return plain if len(plain) == length else plain[at : at + length]

    def digest_of_plain(self, stored: Buffer, where: str) -> bytes:
        """Check the digest of the stored payload; returns that of the plain one, which is not held in memory. Raises
        Damaged.
        """
        if digest_of(stored) != self.digest:
            raise Damaged(f"{where}: digest of the stored payload does not match")
        digest = blake3()
        for part in self.plain(stored, where):
            digest.update(part)
        return digest.digest()


def received(
    bulk_length: int,
    table_length: int,
    length: int,
    parts: Callable[[], Iterator[memoryview]],
    where: str,
    room_of: Callable[[int], memoryview] = new_room,
) -> Iterator[memoryview]:
    """Receive a compressed payload of `length` plain bytes: yields a buffer for the table and the stored payload, which
    is full when the next is requested, and fills the buffers of `parts()` with the plain bytes. Raises Damaged.

    `room_of` is called once, before `parts`, with the length of the packed payload: that of the table (u32), the table,
    and the stored payload. It returns memory of zeros, where it is complete when `parts` is called. The length of the
    table comes last: it is 0 in what was received in part.
    """
    if not 0 < table_length < bulk_length <= table_length + length or table_length > _TABLE_BYTES_MAX:
        raise Damaged(f"{where}: {bulk_length} bytes with a table of {table_length}, of {length} plain ones")
    packed = room_of(_TABLE_LENGTH.size + bulk_length)
    room = packed[_TABLE_LENGTH.size :]
    yield room
    frames = _frames_of(room[:table_length], length, bulk_length - table_length, where)
    _TABLE_LENGTH.pack_into(packed, 0, table_length)
    pieces, piece = frames.plain(room[table_length:], where), memoryview(b"")
    for part in parts():
        while part:
            piece = piece or memoryview(next(pieces))
            size = min(len(part), len(piece))
            part[:size] = piece[:size]
            part, piece = part[size:], piece[size:]


def is_packed(packed: memoryview) -> bool:
    """Whether a packed payload has been received as a whole."""
    return any(packed[: _TABLE_LENGTH.size])


def unpacking(read: Read, packed_length: int, length: int, where: str) -> Read:
    """Reads ranges of the `length` plain bytes of a packed payload (`received`), of which `read` returns ranges.
    Raises Damaged, which begins with `where`, here and when it reads; and as `read`.
    """
    start = _TABLE_LENGTH.size
    head = memoryview(read(0, min(_HEAD_BYTES, packed_length)))
    table_length = _TABLE_LENGTH.unpack_from(head)[0] if len(head) >= start else 0
    begin = start + table_length
    if not 0 < table_length <= _TABLE_BYTES_MAX or begin >= packed_length:
        raise Damaged(f"{where}: {packed_length} bytes with a table of {table_length}")
    table = head[start:begin] if begin <= len(head) else memoryview(read(start, table_length))
    frames = _frames_of(table, length, packed_length - begin, where)
    return lambda offset, size: frames.part(lambda at, count: read(begin + at, count), offset, size, where)


def _frames_of(table: memoryview, length: int, stored_length: int, where: str) -> Frames:
    """Raises Damaged."""
    try:
        return Frames.of_fields(unpack_fields(table, FRAME_FIELDS), length, stored_length)
    except FieldsFault as fault:
        raise Damaged(f"{where}: {fault}") from None


def _unpacked(
    decompressor: "zstandard.ZstdDecompressor", packed: memoryview, length: int, where: str
) -> bytes:
    """The plain bytes of a frame. Raises Damaged unless it has exactly this length."""
    from zstandard import ZstdError, frame_content_size

    try:
        if frame_content_size(packed) != length:
            raise Damaged(f"{where}: it states another length than the table, {length} bytes")
        plain: bytes = decompressor.decompress(packed, max_output_size=length, allow_extra_data=False)
    except ZstdError as error:
        raise Damaged(f"{where}: {error}") from None
    if len(plain) != length:
        raise Damaged(f"{where}: {len(plain)} bytes, the table has {length}")
    return plain


@lru_cache(maxsize=8)
def _shared(dictionary: bytes) -> bytes:
    """The same dictionary for all chunks that have it."""
    return dictionary


@lru_cache(maxsize=8)
def _loaded(dictionary: bytes) -> "zstandard.ZstdCompressionDict":
    from zstandard import ZstdCompressionDict

    return ZstdCompressionDict(dictionary)


def _decompressor(dictionary: bytes, where: str) -> "zstandard.ZstdDecompressor":
    """For one thread. Raises Damaged."""
    from zstandard import ZstdDecompressor, ZstdError

    try:
        found = _loaded(dictionary) if dictionary else None
        return ZstdDecompressor(dict_data=found, max_window_size=_WINDOW_BYTES_MAX)
    except (ZstdError, MemoryError):
        raise Damaged(f"{where}: the dictionary of the frames cannot be used") from None


def frame_ends(length: int, extents: Sequence[tuple[int, int]]) -> list[int]:
    """Where the frames of a payload end. `extents`: offset and length of each, ascending."""
    ends = [0]

    def close(end: int) -> None:
        while ends[-1] < end:
            ends.append(min(end, ends[-1] + FRAME_BYTES))

    for offset, size in extents:
        if size >= FRAME_BYTES_MIN:
            close(offset)
        if offset + size - ends[-1] >= FRAME_BYTES_MIN:
            close(offset + size)
    close(length)
    return ends[1:]


@dataclass(eq=False)
class Compression:
    """How chunks of an upload are compressed. The first chunk of small files trains the `dictionary`: None before
    that, empty for none. Thread-safe.
    """

    level: int = DEFAULT_LEVEL
    dictionary: bytes | None = None
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def parse(cls, text: str) -> "Compression":
        """The one that `zstd` or `zstd:LEVEL` names. Raises InvalidInput."""
        name, _, level = text.partition(":")
        if name != "zstd" or not (level or "3").isdecimal() or not 0 < int(level or "3") <= LEVEL_MAX:
            raise InvalidInput(f"compression {text!r}: write zstd or zstd:LEVEL, 1 to {LEVEL_MAX}")
        return cls(int(level or DEFAULT_LEVEL))

    def packed(self, payload: bytes, extents: Sequence[tuple[int, int]]) -> tuple[Frames, bytes] | None:
        """The frames of a payload, and the stored payload; None if it does not shrink. `extents`: offset and length of
        each, ascending.
        """
        view, ends = memoryview(payload), frame_ends(len(payload), extents)
        parts = [view[start:end] for start, end in zip((0, *ends), ends, strict=False)]
        is_small = DICTIONARY_PAYLOAD_BYTES_MIN <= len(payload) <= DICTIONARY_FRAME_BYTES_MAX * len(ends)
        dictionary = self._trained(payload, extents, parts) if is_small else b""
        packed = self._shrunk(parts, dictionary)
        stored = b"".join(packed)
        if not payload or len(stored) + len(dictionary) > SHRUNK_SHARE_MAX * len(payload):
            return None
        stored_ends = np.cumsum([len(part) for part in packed])
        return Frames(np.array(ends), stored_ends, dictionary, self.level, digest_of(stored)), stored

    def _shrunk(self, parts: Sequence[memoryview], dictionary: bytes) -> list[Buffer]:
        """Each part as it is stored."""
        from zstandard import ZstdCompressor

        found = _loaded(dictionary) if dictionary else None
        compress = ZstdCompressor(level=self.level, dict_data=found, write_dict_id=False).compress
        packed = [(compress(part), part) for part in parts]
        return [small if len(small) <= SHRUNK_SHARE_MAX * len(part) else part for small, part in packed]

    def _trained(
        self, payload: bytes, extents: Sequence[tuple[int, int]], parts: Sequence[memoryview]
    ) -> bytes:
        """The dictionary. If there is none yet, these files train it; it stays empty if they gain nothing from it."""
        from zstandard import ZstdError, train_dictionary

        with self._lock:
            if self.dictionary is None:
                samples: list[Buffer] = [
                    payload[offset : offset + length] for offset, length in extents[::SAMPLED_EVERY]
                ]
                with suppress(ZstdError):  # they have nothing in common
                    self.dictionary = train_dictionary(
                        DICTIONARY_BYTES, samples, k=_SEGMENT, d=_MATCH
                    ).as_bytes()
                tried = self.dictionary or b""
                with_it, without = (sum(map(len, self._shrunk(parts, each))) for each in (tried, b""))
                if with_it + len(tried) >= without:
                    self.dictionary = b""
            return self.dictionary or b""
