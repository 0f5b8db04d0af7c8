"""Compressed chunks: what their objects have, which frames a range costs, and that no frame takes more than it may."""

import json
import random
import struct
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from xxhash import xxh3_64_intdigest

from dieselfs.chunk import frames
from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_frames, decode_preamble, decode_stored
from dieselfs.chunk.frames import FRAME_BYTES, FRAME_BYTES_MIN, Compression, Frames, frame_ends
from dieselfs.digests import digest_of
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.fields import FieldsFault
from dieselfs.limits import KIB, MIB
from tests.support.chunks import CHUNK_ID, DATASET_ID, FIRST_VERSION, MEOWS, compressed_chunk, sample_chunk
from tests.support.decoders import check_decoder, refused

SOURCE = "chunk 42"
CHANCE = random.Random(28)


def stored(data: bytes) -> object:
    return decode_stored(data, SOURCE)


def noise(size: int) -> bytes:
    return CHANCE.randbytes(size)


def records(count: int) -> list[bytes]:
    """Small texts that resemble each other, of about 140 bytes."""
    words = ["%x" % (word * word * 7919) for word in range(1000)]
    return [
        json.dumps(
            {"id": CHANCE.getrandbits(60), "caption": " ".join(CHANCE.choices(words, k=12)), "split": "train"}
        ).encode()
        for _ in range(count)
    ]


def sealed_of(files: list[bytes]) -> SealedChunk:
    builder = ChunkBuilder()
    for number, content in enumerate(files):
        builder.add_file(b"%05d" % number, content, 0o644, 1)
    return builder.seal()


def plain_of(data: bytes) -> bytes:
    """The plain payload of the object of a compressed chunk, read as docs/reference/chunk-format.md says, without the
    code of dieselfs.
    """
    magic, version, flags, header_length, plain_length, stored_length = struct.unpack_from("<8sHHIII", data)
    assert (magic, version, flags) == (b"\x89DSLC\r\n\x1a", 2, 2)
    assert len(data) == 112 + header_length + stored_length
    fields = msgpack.unpackb(data[112 : 112 + header_length])
    payload = data[112 + header_length :]
    ends = struct.unpack(f"<{len(fields['frame_ends']) // 4}I", fields["frame_ends"])
    stops = struct.unpack(f"<{len(ends)}I", fields["frame_stored_ends"])
    dictionary = fields["frame_dictionary"]
    reader = zstandard.ZstdDecompressor(zstandard.ZstdCompressionDict(dictionary) if dictionary else None)
    plain = b""
    for start, end, begin, stop in zip((0, *ends), ends, (0, *stops), stops, strict=False):
        part = payload[begin:stop]
        plain += part if stop - begin == end - start else reader.decompress(part)
    assert len(plain) == plain_length
    return plain


def test_a_compressed_chunk_has_its_frames_in_place_of_the_payload() -> None:
    data = compressed_chunk()
    preamble, header = decode_stored(data, SOURCE, CHUNK_ID, DATASET_ID)
    assert (
        preamble.encode() == data[:PREAMBLE_BYTES] and header.encode() == data[112 : preamble.payload_start]
    )
    assert preamble.payload_length == len(MEOWS) and preamble.payload_digest == digest_of(MEOWS)
    assert preamble.stored_length == len(data) < preamble.object_length
    assert header.lengths.tolist() == [len(MEOWS)], "extents are of the plain payload"
    assert plain_of(data) == MEOWS
    check_decoder(stored, data, SOURCE)


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(compressed_chunk())
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        refused(stored, bytes(data), SOURCE)
        data[place] ^= 1 << place % 8


@pytest.mark.parametrize(
    "files",
    [records(5000), [b"x" * (3 * MIB), noise(MIB), *records(50)], [noise(5000), b"y" * 9000, b"", b"z" * 10]],
    ids=["small files with a dictionary", "large files and noise", "few"],
)
def test_every_file_is_readable_by_itself(files: list[bytes]) -> None:
    sealed = sealed_of(files).compressed(Compression())
    assert sealed.frames is not None
    data = b"".join(sealed.encode(CHUNK_ID, "pets", DATASET_ID, FIRST_VERSION))
    assert plain_of(data) == sealed.payload
    preamble, header = decode_stored(data, SOURCE)
    found = decode_frames(preamble, data[PREAMBLE_BYTES : preamble.payload_start], SOURCE)
    assert bool(found.dictionary) == (len(files) == 5000)
    payload = data[preamble.payload_start :]
    for entry in range(0, len(files), 7):
        offset, length = int(header.offsets[entry]), int(header.lengths[entry])
        first, end = found.spanning(offset, length)
        (start, begin), (_, stop) = found.start(first), found.start(end)
        plain = b"".join(found.plain(payload[begin:stop], SOURCE, first, end))
        assert plain[offset - start :][:length] == files[entry]
        assert len(plain) < length + 2 * FRAME_BYTES_MIN, "no frame of another file is read"


def test_the_dictionary_is_trained_once_and_pays() -> None:
    compression, first, second = Compression(), records(5000), records(5000)
    chunks = [sealed_of(files).compressed(compression) for files in (first, second)]
    tables = [chunk.frames for chunk in chunks if chunk.frames is not None]
    assert tables[0].dictionary == tables[1].dictionary == compression.dictionary
    without = sealed_of(second).compressed(Compression(dictionary=b""))
    assert len(chunks[1].stored) + len(tables[1].dictionary) < len(without.stored)
    few = sealed_of(second[:100]).compressed(compression)
    assert few.frames is not None and few.frames.dictionary == b"", "it would be the larger part"
    useless = Compression()
    sealed_of([b"%032d" % CHANCE.getrandbits(100) for _ in range(20_000)]).compressed(useless)
    assert useless.dictionary == b""


def test_what_does_not_shrink_is_an_ordinary_chunk() -> None:
    sealed = sealed_of([noise(100_000)])
    assert sealed.compressed(Compression()) is sealed
    mixed = sealed_of([noise(100_000), b"x" * 100_000]).compressed(Compression())
    assert mixed.frames is not None and mixed.payload[:100_000] in mixed.stored


def test_frames_end_with_files_and_large_ones_are_split() -> None:
    sizes = [100, 200, 5000, FRAME_BYTES * 2 + 7, 50, FRAME_BYTES, 3000, 3000, 10]
    offsets = np.cumsum([0, *sizes]).tolist()
    ends = frame_ends(offsets[-1], list(zip(offsets, sizes, strict=False)))
    large = offsets[3]
    assert ends == [
        *(300, 5300, large + FRAME_BYTES, large + 2 * FRAME_BYTES, large + 2 * FRAME_BYTES + 7),
        *(offsets[5], offsets[6], offsets[8], offsets[9]),
    ]


def table(**changes: Any) -> dict[str, Any]:
    header = compressed_chunk()[PREAMBLE_BYTES:]
    unpacker = msgpack.Unpacker()
    unpacker.feed(header)
    return {name: value for name, value in unpacker.unpack().items() if name in frames.FRAME_FIELDS} | changes


def ends(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"frame_ends": b""},
        {"frame_ends": ends(199)},
        {"frame_ends": ends(200, 200), "frame_stored_ends": ends(1, 20)},
        {"frame_ends": ends(201, 200), "frame_stored_ends": ends(1, 20)},
        {"frame_ends": ends(10, 200), "frame_stored_ends": ends(15, 20)},
        {"frame_stored_ends": ends(21)},
        {"frame_dictionary": bytes(frames.DICTIONARY_BYTES_MAX + 1)},
        {"frame_level": 0},
        {"frame_digest": bytes(31)},
    ],
)
def test_a_table_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    fields = table(frame_stored_ends=ends(20))
    Frames.of_fields(fields, len(MEOWS), 20)
    with pytest.raises(FieldsFault):
        Frames.of_fields(fields | changes, len(MEOWS), 20)


def test_no_frame_takes_memory_for_more_than_its_table_says() -> None:
    """A frame that states 64 MiB, one that states nothing, one with bytes behind it, and one that is none."""
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100 * KIB))
    longer = zstandard.ZstdCompressor().compress(bytes(100 * KIB)) + b"more"
    for frame in (bomb, silent, longer, b"no frame"):
        found = Frames(np.array([100 * KIB]), np.array([len(frame)]), b"", 3, digest_of(frame))
        with pytest.raises(Damaged, match=r"^here: frame that ends at 102400"):
            found.digest_of_plain(frame, "here")
    found = Frames(np.array([100]), np.array([20]), b"\x37\xa4\x30\xec" + bytes(9), 3, bytes(32))
    with pytest.raises(Damaged, match=r"^here"):
        b"".join(found.plain(bytes(20), "here"))


def test_flags_and_lengths_of_the_preamble_agree() -> None:
    compressed, plain = compressed_chunk(), sample_chunk()
    for data, place, values in ((compressed, 10, (0, 3)), (compressed, 20, (0, 201)), (plain, 20, (1,))):
        for value in values:
            head = bytearray(data[:PREAMBLE_BYTES])
            head[place : place + 2] = value.to_bytes(2, "little")
            head[104:] = xxh3_64_intdigest(bytes(head[:104])).to_bytes(8, "little")
            refused(lambda head: decode_preamble(head, SOURCE), bytes(head), SOURCE)


def test_a_server_that_lies_is_refused() -> None:
    sealed = sealed_of(records(100)).compressed(Compression())
    assert sealed.frames is not None
    packed, length = msgpack.packb(sealed.frames.fields()), len(sealed.payload)

    def receive(content: bytes, table_length: int) -> bytes:
        room = bytearray(length)
        bulk = frames.received(len(content), table_length, length, lambda: iter([memoryview(room)]), SOURCE)
        next(bulk)[:] = content
        assert next(bulk, None) is None
        return bytes(room)

    assert receive(packed + sealed.stored, len(packed)) == sealed.payload
    shorter = replace(sealed.frames, ends=sealed.frames.ends - 1)
    for content, table_length in (
        (packed + sealed.stored + b"x", len(packed)),
        (packed + sealed.stored, len(packed) + 1),
        (packed + sealed.stored, 0),
        (packed + bytes(length + 1), len(packed)),
        (msgpack.packb(shorter.fields()) + sealed.stored, len(packed)),
    ):
        with pytest.raises(Damaged):
            receive(content, table_length)


@pytest.mark.parametrize("head_bytes", [4, 100, 64 * KIB])
def test_a_packed_payload_is_read_by_ranges(monkeypatch: pytest.MonkeyPatch, head_bytes: int) -> None:
    monkeypatch.setattr(frames, "_HEAD_BYTES", head_bytes)
    files = [*records(4000), noise(300_000), b"line of a text\n" * 40_000]
    sealed = sealed_of(files).compressed(Compression())
    assert sealed.frames is not None
    table, payload = msgpack.packb(sealed.frames.fields()), sealed.payload
    room = memoryview(bytearray(len(payload)))
    kept: list[memoryview] = []

    def room_of(length: int) -> memoryview:
        kept.append(frames.new_room(length))
        return kept[0]

    bulk_bytes = len(table) + len(sealed.stored)
    bulk = frames.received(bulk_bytes, len(table), len(payload), lambda: iter([room]), SOURCE, room_of)
    next(bulk)[:] = table + sealed.stored
    assert next(bulk, None) is None and room == payload
    (packed,) = kept
    assert packed == struct.pack("<I", len(table)) + table + sealed.stored
    reads: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> memoryview:
        reads.append((offset, length))
        return packed[offset : offset + length]

    plain = frames.unpacking(read, len(packed), len(payload), SOURCE)
    for _ in range(100):
        start, end = sorted(CHANCE.choices(range(len(payload) + 1), k=2))
        assert plain(start, end - start) == payload[start:end]
    reads.clear()
    assert plain(len(payload) - 5, 5) == payload[-5:] and plain(0, 0) == b""
    assert len(reads) == 1 and reads[0][1] < 1000, "the frame alone"
    for offset, length in ((len(payload), 1), (0, len(payload) + 1)):
        with pytest.raises(Damaged):
            plain(offset, length)
    for length in range(0, len(packed), 997):
        with pytest.raises(Damaged):
            frames.unpacking(read, length, len(payload), SOURCE)
    for length in (len(payload) - 1, len(payload) + 1):
        with pytest.raises(Damaged):
            frames.unpacking(read, len(packed), length, SOURCE)


@pytest.mark.parametrize("text", ["", "gzip", "zstd:0", "zstd:23", "zstd:x", "zstd:-1", "ZSTD"])
def test_what_names_no_compression(text: str) -> None:
    with pytest.raises(InvalidInput, match="write zstd or zstd:LEVEL"):
        Compression.parse(text)
    assert (Compression.parse("zstd").level, Compression.parse("zstd:19").level) == (3, 19)
