"""The snapshot file: its preamble and header, whole, cut short, flipped, and hostile with right digests."""

import random
import struct
from io import BytesIO
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dieselfs.digests import digest_of
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import SNAPSHOT_BYTES_MAX
from dieselfs.snapshot.encoding import SnapshotWriter, encode_snapshot
from dieselfs.snapshot.format import (
    HEADER_BYTES_MAX,
    NUMBERS,
    PREAMBLE_BYTES,
    SECTION_ALIGNMENT,
    SECTION_TYPES,
    check_digest,
    decode_snapshot_header,
)
from dieselfs.snapshot.reader import Snapshot
from tests.support.decoders import check_decoder, refused
from tests.support.snapshots import SAMPLE, SOURCE, snapshot_bytes

DATA = snapshot_bytes(SAMPLE)
HEADER_LENGTH = int.from_bytes(DATA[12:16], "little")
HUGE = (1 << 64) - 1


def decode(data: bytes) -> None:
    Snapshot(data, SOURCE).verify()


def sealed(data: bytes | bytearray) -> bytes:
    """`data` with all digests made right; lengths stay what the preamble says."""
    whole = bytearray(data)
    header_end = PREAMBLE_BYTES + int.from_bytes(whole[12:16], "little")
    struct.pack_into("<Q", whole, 24, xxh3_64_intdigest(whole[PREAMBLE_BYTES:header_end]))
    struct.pack_into("<32s", whole, 32, digest_of(whole[PREAMBLE_BYTES:]))
    struct.pack_into("<Q", whole, PREAMBLE_BYTES - 8, xxh3_64_intdigest(whole[: PREAMBLE_BYTES - 8]))
    return bytes(whole)


def with_header(header: bytes) -> bytes:
    """The sample with another header of any length before the same bytes."""
    whole = bytearray(DATA[:PREAMBLE_BYTES] + header + DATA[PREAMBLE_BYTES + HEADER_LENGTH :])
    struct.pack_into("<I", whole, 12, len(header))
    struct.pack_into("<Q", whole, 16, len(whole))
    return sealed(whole)


def test_header_says_what_the_snapshot_is() -> None:
    header = decode_snapshot_header(DATA, len(DATA), SOURCE)
    assert (header.dataset, header.generation, header.nodes, header.files) == ("pets", 7, 8, 4)
    assert (header.total_bytes, header.extents, header.links, header.chunks) == (139, 4, 1, 2)
    assert header.digest == digest_of(DATA[PREAMBLE_BYTES:])
    assert header.file_length == len(DATA)


def test_sections_lie_in_order_aligned_and_apart() -> None:
    header = decode_snapshot_header(DATA, len(DATA), SOURCE)
    end = PREAMBLE_BYTES + HEADER_LENGTH
    for name in SECTION_TYPES:
        section = header.sections[name]
        assert section.offset % SECTION_ALIGNMENT == 0
        assert 0 <= section.offset - end < SECTION_ALIGNMENT
        assert not any(DATA[end : section.offset])
        end = section.offset + section.length
    assert end == len(DATA)


def test_the_beginning_is_enough_for_the_header() -> None:
    whole = decode_snapshot_header(DATA, len(DATA), SOURCE)
    assert decode_snapshot_header(DATA[: PREAMBLE_BYTES + HEADER_LENGTH], len(DATA), SOURCE) == whole
    for length in range(PREAMBLE_BYTES + HEADER_LENGTH):
        refused(lambda data: decode_snapshot_header(data, len(DATA), SOURCE), DATA[:length], SOURCE)


def test_whole_cut_short_and_with_more_behind() -> None:
    check_decoder(decode, DATA, SOURCE)


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(DATA)
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            with pytest.raises(Damaged, match="snapshot 7: offset "):
                decode(bytes(data))
            data[place] ^= 1 << bit
    decode(bytes(data))


def test_damage_behind_the_header_is_found_by_the_digest() -> None:
    data = bytearray(DATA)
    data[-1] ^= 1
    header = decode_snapshot_header(data, len(data), SOURCE)
    with pytest.raises(Damaged, match="snapshot 7: offset 168: digest of the snapshot does not match"):
        check_digest(data, header, SOURCE)


@pytest.mark.parametrize(
    ("place", "form", "value", "offset"),
    [
        (0, "<8s", b"\x89DSLC\r\n\x1a", 0),
        (8, "<H", 0, 8),
        (8, "<H", 1, 8),
        (8, "<H", 3, 8),
        (10, "<H", 2, 8),
        (12, "<I", HEADER_BYTES_MAX + 1, 12),
        (12, "<I", len(DATA), 12),
        (12, "<I", 0, PREAMBLE_BYTES),
        (16, "<Q", 0, 16),
        (16, "<Q", len(DATA) + 1, 16),
        (16, "<Q", HUGE, 16),
    ],
)
def test_preamble_that_cannot_be(place: int, form: str, value: object, offset: int) -> None:
    data = bytearray(DATA)
    struct.pack_into(form, data, place, value)
    struct.pack_into("<Q", data, PREAMBLE_BYTES - 8, xxh3_64_intdigest(data[: PREAMBLE_BYTES - 8]))
    try:
        message = refused(decode, sealed(data), SOURCE)
    except ValueError:  # a header length for which `sealed` cannot make the checksum right
        message = refused(decode, bytes(data), SOURCE)
    assert message.startswith(f"snapshot 7: offset {offset}: ")


def test_a_file_beyond_the_limit_is_refused() -> None:
    data = bytearray(DATA)
    struct.pack_into("<Q", data, 16, SNAPSHOT_BYTES_MAX + 1)
    struct.pack_into("<Q", data, PREAMBLE_BYTES - 8, xxh3_64_intdigest(data[: PREAMBLE_BYTES - 8]))
    with pytest.raises(Damaged, match="snapshot 7: offset 16: "):
        decode_snapshot_header(data, SNAPSHOT_BYTES_MAX + 1, SOURCE)


FIELDS: dict[str, Any] = msgpack.unpackb(DATA[PREAMBLE_BYTES : PREAMBLE_BYTES + HEADER_LENGTH])


def with_section(name: str, offset: int | None = None, length: int | None = None) -> dict[str, Any]:
    """The fields with the place of one section changed."""
    sections = bytearray(FIELDS["sections"])
    place = 16 * list(SECTION_TYPES).index(name)
    if offset is not None:
        struct.pack_into("<Q", sections, place, offset)
    if length is not None:
        struct.pack_into("<Q", sections, place + 8, length)
    return {**FIELDS, "sections": bytes(sections)}


SLOTS_LENGTH = decode_snapshot_header(DATA, len(DATA), SOURCE).sections["hash_slots"].length

HOSTILE_FIELDS: dict[str, dict[str, Any]] = {
    "no nodes": {**FIELDS, "nodes": 0},
    "nodes negative": {**FIELDS, "nodes": -1},
    "nodes other": {**FIELDS, "nodes": 9},
    "nodes beyond 32 bits": {**FIELDS, "nodes": 1 << 32},
    "nodes huge": {**FIELDS, "nodes": HUGE},
    "nodes true": {**FIELDS, "nodes": True},
    "nodes a fraction": {**FIELDS, "nodes": 8.0},
    "nodes not a number": {**FIELDS, "nodes": float("nan")},
    "files other": {**FIELDS, "files": 5},
    "total bytes other": {**FIELDS, "total_bytes": 140},
    "extents other": {**FIELDS, "extents": 3},
    "extents huge": {**FIELDS, "extents": (1 << 32) - 1},
    "links other": {**FIELDS, "links": 0},
    "chunks other": {**FIELDS, "chunks": 1},
    "generation huge": {**FIELDS, "generation": 1 << 63},
    "generation negative": {**FIELDS, "generation": -1},
    "hash bits 0": {**FIELDS, "hash_bits": 0},
    "hash bits more than slots": {**FIELDS, "hash_bits": 6},
    "hash bits 64": {**FIELDS, "hash_bits": 64},
    "dataset name": {**FIELDS, "dataset": "../pets"},
    "dataset as bytes": {**FIELDS, "dataset": b"pets"},
    "dataset ID short": {**FIELDS, "dataset_id": bytes(15)},
    "extra field": {**FIELDS, "more": 1},
    "sections short": {**FIELDS, "sections": FIELDS["sections"][:-1]},
    "sections long": {**FIELDS, "sections": FIELDS["sections"] + bytes(16)},
    "sections as a map": {**FIELDS, "sections": {}},
    "section past the end": with_section("modes", offset=len(DATA) // 64 * 64),
    "section far away": with_section("modes", offset=1 << 63),
    "section round 2^64": with_section("paths", offset=HUGE - 63, length=64),
    "section not aligned": with_section("modes", offset=1000),
    "section too short": with_section("modes", length=28),
    "section too long": with_section("modes", length=36),
    "section huge": with_section("paths", length=HUGE),
    "slots cut": with_section("hash_slots", length=SLOTS_LENGTH - 1),
    "slots too few": with_section("hash_slots", length=8 << FIELDS["hash_bits"]),
    **{f"no {name}": {key: value for key, value in FIELDS.items() if key != name} for name in FIELDS},
}


@pytest.mark.parametrize("case", HOSTILE_FIELDS)
def test_header_that_cannot_be(case: str) -> None:
    """All digests are right here."""
    refused(decode, with_header(msgpack.packb(HOSTILE_FIELDS[case])), SOURCE)


@given(st.binary(max_size=60))
def test_header_of_any_bytes(header: bytes) -> None:
    refused(decode, with_header(header), SOURCE)


def test_an_unchanged_header_is_taken() -> None:
    assert with_header(msgpack.packb(FIELDS)) == DATA
    decode(DATA)


@pytest.mark.parametrize("name", ["nodes", "extents", "links", "chunks"])
def test_more_than_can_be_numbered_is_refused_before_a_byte_is_written(name: str) -> None:
    header, file = Snapshot(DATA, SOURCE).header, BytesIO()
    numbers = {each: getattr(header, each) for each in NUMBERS}
    with pytest.raises(InvalidInput, match=f"at most 4,294,967,295 {name}, not 4,294,967,296"):
        SnapshotWriter(file, header, {**numbers, name: 1 << 32}, {})
    with pytest.raises(InvalidInput, match="at most 64 GiB"):
        SnapshotWriter(file, header, numbers, {"paths": SNAPSHOT_BYTES_MAX})
    assert not file.getvalue()


def test_columns_of_another_type_are_stored_as_the_format_says() -> None:
    snapshot = Snapshot(DATA, SOURCE)
    numbers = {name: FIELDS[name] for name in FIELDS if name not in ("dataset", "dataset_id", "sections")}
    columns = {name: snapshot.column(name) for name in SECTION_TYPES}
    narrow = ("hash_slots", "extent_digests", "chunk_digests")
    wide = {name: column.astype(">i8") for name, column in columns.items() if name not in narrow}
    again = encode_snapshot(snapshot.header, numbers, {**columns, **wide})
    assert Snapshot(again, SOURCE).column("sizes").tolist() == snapshot.column("sizes").tolist()


def test_mutated_headers_with_right_digests_give_damaged_or_a_snapshot() -> None:
    """10,000 headers, each a few changes away from a good one."""
    chance = random.Random(20_240_301)
    packed = DATA[PREAMBLE_BYTES : PREAMBLE_BYTES + HEADER_LENGTH]
    refusals = 0
    for _ in range(10_000):
        header = bytearray(packed)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(header))
            if chance.random() < 0.5:
                header[place] ^= 1 << chance.randrange(8)
            else:
                width = chance.choice([1, 2, 4, 8])
                header[place : place + width] = chance.choice([0, 1, HUGE, 1 << 63]).to_bytes(8, "little")[
                    :width
                ]
        try:
            decode(with_header(bytes(header)))
        except Damaged as error:
            assert str(error).startswith("snapshot 7: offset ")
            refusals += 1
    assert 5_000 < refusals < 10_000
