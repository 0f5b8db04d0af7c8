"""The chunk format: what goes in comes out, and nothing but a whole, unharmed, possible chunk comes out."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import (
    COLUMN_TYPES,
    PREAMBLE_BYTES,
    PROCEED_BYTES,
    ChunkHeader,
    Op,
    Preamble,
    check_extents,
    check_payload,
    decode_chunk,
    decode_header,
    decode_preamble,
)
from dieselfs.digests import NO_DIGEST, extent_digest_of
from dieselfs.errors import Damaged
from dieselfs.limits import (
    CHUNK_ENTRIES_MAX,
    CHUNK_HEADER_BYTES_MAX,
    CHUNK_PATH_BYTES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    FILE_BYTES_MAX,
    MIB,
    NAME_BYTES_MAX,
    PATH_BYTES_MAX,
    PATH_DEPTH_MAX,
)
from tests.support.chunks import (
    CHUNK_ID,
    DATASET_ID,
    FIRST_VERSION,
    chunk_object,
    column,
    sample_chunk,
    sample_fields,
    with_number,
)
from tests.support.decoders import check_decoder, refused

SOURCE = "chunk 42"


def decode(data: bytes) -> object:
    return decode_chunk(data, SOURCE)


def test_sample_round_trip() -> None:
    preamble, header, payload = decode_chunk(sample_chunk(), SOURCE, CHUNK_ID, DATASET_ID)
    assert preamble.chunk_id == CHUNK_ID
    assert preamble.object_length == len(sample_chunk())
    assert (header.dataset, header.dataset_id, len(header)) == ("pets", DATASET_ID, 5)
    assert header.paths == [b"train", b"train/cat.txt", b"train/empty", b"latest", b"train/dog.txt"]
    assert header.ops.tolist() == [Op.DIRECTORY, Op.FILE, Op.FILE, Op.SYMLINK, Op.DELETE]
    assert header.modes.tolist() == [0o755, 0o644, 0o600, 0o777, 0]
    assert header.mtimes_ns.tolist()[-2:] == [-1, 0]
    assert header.versions.tolist() == [FIRST_VERSION + entry for entry in range(5)]
    assert header.target(3) == b"train/cat.txt"
    assert bytes(payload) == b"meow\n"


def test_decodes_from_any_buffer_without_copying_the_payload() -> None:
    data = bytearray(sample_chunk())
    for buffer in (bytes(data), data, memoryview(data)):
        _, header, payload = decode_chunk(buffer, SOURCE)
        assert (len(header), bytes(payload)) == (5, b"meow\n")
        assert payload.obj is data or payload.obj is buffer


def test_whole_cut_short_and_with_more_behind() -> None:
    check_decoder(decode, sample_chunk(), SOURCE)
    check_decoder(decode, chunk_object(sample_fields()), SOURCE)


def test_each_part_cut_short_and_with_more_behind() -> None:
    data = sample_chunk()
    preamble, header, payload = decode_chunk(data, SOURCE)
    packed = data[PREAMBLE_BYTES : preamble.payload_start]
    check_decoder(lambda part: decode_header(preamble, part, SOURCE), packed, SOURCE)
    check_decoder(lambda part: check_payload(preamble, part, SOURCE), bytes(payload), SOURCE)
    for length in range(PREAMBLE_BYTES):
        refused(lambda part: decode_preamble(part, SOURCE), data[:length], SOURCE)
    assert decode_preamble(data, SOURCE) == preamble
    check_extents(preamble, header, payload, SOURCE)


def test_extents_that_files_share_are_read_once_and_all_with_chances_to_end() -> None:
    payload = bytes(range(256)) * 4096
    for is_shared in (True, False):
        builder = ChunkBuilder()
        asked: list[int] = []
        for number in range(200):
            start = 0 if is_shared else number
            content = memoryview(payload)[start : len(payload) - 200 + start]
            builder.add_file(b"%d" % number, content, 0o644, 0, offset=start)
        data = b"".join(builder.seal(payload).encode(CHUNK_ID, "pets", DATASET_ID, 1))
        preamble, header, found = decode_chunk(data, SOURCE, are_extents_checked=False)
        check_extents(preamble, header, found, SOURCE, partial(asked.append, 1))
        assert len(asked) == (0 if is_shared else 200 * (len(payload) - 200) // PROCEED_BYTES)


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(sample_chunk())
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            refused(decode, bytes(data), SOURCE)
            data[place] ^= 1 << bit
    decode(bytes(data))


def test_damage_is_found_where_it_is() -> None:
    """With the digests over the whole made right, the digest of the file or of the link still tells."""
    fields = sample_fields()
    payload_start = PREAMBLE_BYTES + len(msgpack.packb(fields))
    message = refused(decode, chunk_object(fields, b"meow!"), SOURCE)
    assert message == f"chunk 42: offset {payload_start}: digest of 'd/f' does not match"
    message = refused(decode, chunk_object({**fields, "targets": b"e"}), SOURCE)
    assert message == "chunk 42: offset 112: digest of the target of 'l' does not match"


def test_a_valid_chunk_in_the_place_of_another_is_damage() -> None:
    other = bytes(16)
    with pytest.raises(Damaged, match=r"chunk 42: offset 24: this is chunk .*, not chunk ------"):
        decode_chunk(sample_chunk(), SOURCE, other)
    with pytest.raises(Damaged, match="chunk 42: offset 112: this chunk belongs to dataset 'pets'"):
        decode_chunk(sample_chunk(), SOURCE, CHUNK_ID, other)


# -- the preamble ------------------------------------------------------------------------------------------


def preamble_with(place: int, form: str, value: object) -> bytes:
    """The sample's chunk with one value in its preamble changed and the preamble's checksum made right."""
    data = bytearray(sample_chunk())
    struct.pack_into(form, data, place, value)
    struct.pack_into("<Q", data, PREAMBLE_BYTES - 8, xxh3_64_intdigest(data[: PREAMBLE_BYTES - 8]))
    return bytes(data)


@pytest.mark.parametrize(
    ("place", "form", "value", "offset", "what"),
    [
        (0, "<8s", b"\x89DSLS\r\n\x1a", 0, "not a dieselfs chunk"),
        (8, "<H", 0, 8, "format 0"),
        (8, "<H", 1, 8, "chunk format 1"),
        (8, "<H", 3, 8, "format 3"),
        (10, "<H", 4, 8, "flags 0x4"),
        (12, "<I", CHUNK_HEADER_BYTES_MAX + 1, 12, "header of"),
        (12, "<I", 0xFFFF_FFFF, 12, "header of"),
        (12, "<I", 0, 117, "the preamble announces 117"),
        (16, "<Q", CHUNK_PAYLOAD_BYTES_MAX + 1, 16, "payload of"),
        (16, "<Q", (1 << 64) - 1, 16, "payload of"),
        (16, "<Q", 6, len(sample_chunk()), "the preamble announces"),
        (40, "<32s", bytes(32), len(sample_chunk()) - 5, "digest of the payload"),
        (72, "<32s", bytes(32), 112, "digest of the header"),
    ],
)
def test_preamble_that_cannot_be(place: int, form: str, value: object, offset: int, what: str) -> None:
    message = refused(decode, preamble_with(place, form, value), SOURCE)
    assert f"offset {offset}: " in message
    assert what in message


# -- the header --------------------------------------------------------------------------------------------


def without(fields: dict[str, Any], name: str) -> dict[Any, Any]:
    return {key: value for key, value in fields.items() if key != name}


def paths_field(*paths: bytes) -> dict[str, Any]:
    """The sample's fields with other paths."""
    ends = np.cumsum([len(path) for path in paths]).tolist()
    return {**sample_fields(), "paths": b"".join(paths), "path_ends": column("<u4", ends)}


FIELDS = sample_fields()
PACKED = msgpack.packb(FIELDS)
HUGE = (1 << 64) - 1

HOSTILE_FIELDS: dict[str, dict[Any, Any]] = {
    "count too small": {**FIELDS, "count": 2},
    "count too large": {**FIELDS, "count": 4},
    "count negative": {**FIELDS, "count": -1},
    "count beyond the limit": {**FIELDS, "count": CHUNK_ENTRIES_MAX + 1},
    "count huge": {**FIELDS, "count": HUGE},
    "count is true": {**FIELDS, "count": True},
    "count is not a number": {**FIELDS, "count": float("nan")},
    "count is a fraction": {**FIELDS, "count": 3.0},
    "count is text": {**FIELDS, "count": "3"},
    "count is nothing": {**FIELDS, "count": None},
    "extra field": {**FIELDS, "more": 1},
    "extra field in the place of another": {**without(FIELDS, "sizes"), "size": 1},
    "name that is a number": {**without(FIELDS, "sizes"), 1: FIELDS["sizes"]},
    "name that is bytes": {**without(FIELDS, "sizes"), b"sizes": FIELDS["sizes"]},
    "column as a list": {**FIELDS, "ops": [2, 1, 3]},
    "column as a map": {**FIELDS, "ops": {}},
    "column as text": {**FIELDS, "ops": "\2\1\3"},
    "column as an extension": {**FIELDS, "ops": msgpack.ExtType(1, b"\2\1\3")},
    "column as a time": {**FIELDS, "ops": msgpack.Timestamp(1)},
    "nested": {**FIELDS, "ops": {"ops": {"ops": {}}}},
    "column one byte short": {**FIELDS, "ops": b"\2\1"},
    "column one byte long": {**FIELDS, "sizes": FIELDS["sizes"] + b"\0"},
    "dataset name empty": {**FIELDS, "dataset": ""},
    "dataset name with a slash": {**FIELDS, "dataset": "../pets"},
    "dataset name too long": {**FIELDS, "dataset": "p" * 256},
    "dataset name as bytes": {**FIELDS, "dataset": b"pets"},
    "dataset ID too short": {**FIELDS, "dataset_id": bytes(15)},
    "dataset ID too long": {**FIELDS, "dataset_id": bytes(17)},
    "ends not ascending": with_number(FIELDS, "path_ends", 1, 0),
    "ends past the end": with_number(FIELDS, "path_ends", 2, 6),
    "ends before the end": with_number(FIELDS, "path_ends", 2, 4),
    "ends huge": with_number(FIELDS, "path_ends", 2, 0xFFFF_FFFF),
    "paths empty": {**FIELDS, "paths": b""},
    "operation 4": with_number(FIELDS, "ops", 0, 4),
    "operation 255": with_number(FIELDS, "ops", 0, 255),
    "mode with type bits": with_number(FIELDS, "modes", 1, 0o100644),
    "mode huge": with_number(FIELDS, "modes", 1, 0xFFFF_FFFF),
    "version 0": with_number(FIELDS, "versions", 0, 0),
    "version of 64 bits": with_number(FIELDS, "versions", 0, 1 << 63),
    "version huge": with_number(FIELDS, "versions", 0, HUGE),
    "size beyond the limit": with_number(FIELDS, "sizes", 1, FILE_BYTES_MAX + 1),
    "size huge": with_number(FIELDS, "sizes", 1, HUGE),
    "size smaller than the extent": with_number(FIELDS, "sizes", 1, 4),
    "size of a folder": with_number(FIELDS, "sizes", 0, 1),
    "size of a link": with_number(FIELDS, "sizes", 2, 1),
    "extent past the payload": with_number(FIELDS, "offsets", 1, 1),
    "extent at the far end": with_number(FIELDS, "offsets", 1, 0xFFFF_FFFF),
    "extent longer than the payload": with_number(FIELDS, "lengths", 1, 6),
    "extent huge": with_number(FIELDS, "lengths", 1, 0xFFFF_FFFF),
    "extent empty, file not": with_number(FIELDS, "lengths", 1, 0),
    "extent past its file": with_number(FIELDS, "places", 1, 1),
    "place huge": with_number(FIELDS, "places", 1, HUGE),
    "place and length round 2^64": with_number(FIELDS, "places", 1, HUGE - 4),
    "place and length round 2^63": with_number(FIELDS, "places", 1, (1 << 63) - 5),
    "place of a link": with_number(FIELDS, "places", 2, 1),
    "digest of a folder": with_number(FIELDS, "digests", 0, bytes(15) + b"\1"),
    "bytes of a folder": with_number(FIELDS, "lengths", 0, 1),
    "offset of a folder": with_number(FIELDS, "offsets", 0, 1),
    "target past its column": with_number(FIELDS, "offsets", 2, 1),
    "target longer than its column": with_number(FIELDS, "lengths", 2, 2),
    "target empty": with_number(FIELDS, "lengths", 2, 0),
    "target too long": with_number({**FIELDS, "targets": b"t" * 5000}, "lengths", 2, PATH_BYTES_MAX + 1),
    "target with NUL": {**FIELDS, "targets": b"\0"},
    "target with another digest": {**FIELDS, "targets": b"e"},
    "file with another digest": with_number(FIELDS, "digests", 1, NO_DIGEST),
    "the root as a file": with_number(with_number(FIELDS, "path_ends", 0, 0), "ops", 0, Op.FILE),
    "the root deleted": with_number(with_number(FIELDS, "path_ends", 0, 0), "ops", 0, Op.DELETE),
    "path ..": paths_field(b"d", b"..", b"l"),
    "path .": paths_field(b"d", b".", b"l"),
    "path up and out": paths_field(b"d", b"../../etc/passwd", b"l"),
    "path with .. in the middle": paths_field(b"d", b"d/../f", b"l"),
    "path with .. at the end": paths_field(b"d", b"d/..", b"l"),
    "path with a leading slash": paths_field(b"d", b"/f", b"l"),
    "path with a trailing slash": paths_field(b"d", b"f/", b"l"),
    "path with an empty part": paths_field(b"d", b"d//f", b"l"),
    "path with NUL": paths_field(b"d", b"d/\0", b"l"),
    "path with a part too long": paths_field(b"d", b"d/" + b"f" * (NAME_BYTES_MAX + 1), b"l"),
    "path too long": paths_field(b"d", b"/".join([b"f" * 255] * 17), b"l"),
    "path too deep": paths_field(b"d", b"/".join([b"f"] * (PATH_DEPTH_MAX + 1)), b"l"),
    "paths beyond the limit": paths_field(b"d", b"f" * CHUNK_PATH_BYTES_MAX, b"l"),
    **{f"no {name}": without(FIELDS, name) for name in FIELDS},
}


@pytest.mark.parametrize("case", HOSTILE_FIELDS)
def test_header_that_cannot_be(case: str) -> None:
    """All digests are right here: only the checks of the values themselves stand in the way."""
    message = refused(decode, chunk_object(HOSTILE_FIELDS[case]), SOURCE)
    assert len(message) < 1000


HOSTILE_BYTES: dict[str, bytes] = {
    "nothing": b"",
    "no map": msgpack.packb([FIELDS]),
    "only a number": b"\1",
    "only nil": b"\xc0",
    "a byte that means nothing": b"\xc1",
    "the same field twice": PACKED[:1]
    + msgpack.packb("count")
    + b"\3"
    + msgpack.packb(without(FIELDS, "sizes"))[1:],
    "something behind the map": PACKED + b"\xc0",
    "map cut short": PACKED[:-1],
    "map of four billion": b"\xdf\xff\xff\xff\xff",
    "list of four billion": b"\xdd\xff\xff\xff\xff",
    "bytes of four gigabytes": PACKED[:1] + b"\xa5count\xc6\xff\xff\xff\xff",
    "text of four gigabytes": PACKED[:1] + b"\xdb\xff\xff\xff\xff",
    "name that is no UTF-8": PACKED.replace(b"\xa5sizes", b"\xa5\xff\xfe\xfd\xfc\xfb"),
    "nested without end": b"\x81\xa1a" * 100_000,
    "lists without end": b"\x91" * 100_000,
    "a list for a name": PACKED.replace(b"\xa5sizes", b"\x90"),
    "a map for a name": PACKED.replace(b"\xa5sizes", b"\x80"),
}


@pytest.mark.parametrize("case", HOSTILE_BYTES)
def test_header_that_is_no_map_of_fields(case: str) -> None:
    message = refused(decode, chunk_object(HOSTILE_BYTES[case]), SOURCE)
    assert message.startswith("chunk 42: offset 112: header: ")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\x8f" + b"\xa0\x80" * (2 * MIB), id="maps inside"),
        pytest.param(b"\x8f\xa5paths" + b"\x9f" * (4 * MIB), id="lists inside"),
        pytest.param(b"\xdf\x00\xff\xff\xff" + b"\xa0\xc0" * (2 * MIB), id="many fields"),
        pytest.param(msgpack.packb({**FIELDS, "paths": b"/" * (4 * MIB)}), id="a path of slashes"),
        pytest.param(
            msgpack.packb(
                {
                    name: np.zeros(CHUNK_ENTRIES_MAX, COLUMN_TYPES[name]).tobytes()
                    if name in COLUMN_TYPES
                    else value
                    for name, value in FIELDS.items()
                }
                | {
                    "count": CHUNK_ENTRIES_MAX,
                    "paths": b"/" * (4 * MIB),
                    "path_ends": column("<u4", [64 * (entry + 1) for entry in range(CHUNK_ENTRIES_MAX)]),
                }
            ),
            id="many paths of slashes",
        ),
    ],
)
def test_memory_stays_in_proportion_to_the_chunk(header: bytes) -> None:
    data = chunk_object(header)
    tracemalloc.start()
    try:
        refused(decode, data, SOURCE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(data) + 64 * MIB


# -- properties --------------------------------------------------------------------------------------------

names = st.binary(min_size=1, max_size=12).map(
    lambda name: bytes(c if c not in b"/\0" else ord("_") for c in name).replace(b".", b"~")
)
paths = st.lists(names, min_size=1, max_size=4).map(b"/".join)


@st.composite
def headers(draw: st.DrawFn) -> tuple[ChunkHeader, bytes]:
    """Any possible header, with a payload that fits."""
    entries = draw(st.lists(st.tuples(paths, st.sampled_from(Op), st.binary(max_size=20)), max_size=12))
    payload, targets = bytearray(), bytearray()
    columns: dict[str, list[Any]] = {name: [] for name in COLUMN_TYPES}
    for _, op, content in entries:
        size = place = offset = 0
        if op is Op.FILE:
            offset = len(payload)
            payload += content
            place = draw(st.integers(0, FILE_BYTES_MAX - 20)) if content else 0
            size = draw(st.integers(place + len(content), FILE_BYTES_MAX)) if content else 0
        elif op is Op.SYMLINK:
            content = content.replace(b"\0", b"0") or b"x"
            offset = len(targets)
            targets += content
        else:
            content = b""
        row = {
            "ops": int(op),
            "modes": draw(st.integers(0, 0o7777)),
            "mtimes_ns": draw(st.integers(-(1 << 63), (1 << 63) - 1)),
            "sizes": size,
            "places": place,
            "offsets": offset,
            "lengths": len(content),
            "digests": extent_digest_of(content) if content or op is Op.FILE else NO_DIGEST,
            "versions": draw(st.integers(1, (1 << 63) - 1)),
        }
        for name, value in row.items():
            columns[name].append(value)
    arrays = {name: np.array(values, COLUMN_TYPES[name]) for name, values in columns.items()}
    dataset_id = draw(st.binary(min_size=16, max_size=16))
    named = [path for path, _, _ in entries]
    return ChunkHeader("any", dataset_id, named, bytes(targets), **arrays, source=None, frames=None), bytes(
        payload
    )


def same_header(one: ChunkHeader, other: ChunkHeader) -> bool:
    return (
        (one.dataset, one.dataset_id, one.paths, one.targets)
        == (other.dataset, other.dataset_id, other.paths, other.targets)
    ) and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMN_TYPES)


@settings(max_examples=200)
@given(headers(), st.binary(min_size=16, max_size=16))
def test_any_possible_chunk_round_trips(made: tuple[ChunkHeader, bytes], chunk_id: bytes) -> None:
    header, payload = made
    data = chunk_object(header.encode(), payload, chunk_id)
    preamble, decoded, decoded_payload = decode_chunk(data, SOURCE, chunk_id, header.dataset_id)
    assert same_header(decoded, header)
    assert decoded.encode() == header.encode()
    assert bytes(decoded_payload) == payload
    assert preamble.encode() == data[:PREAMBLE_BYTES]


@settings(max_examples=200)
@given(
    st.builds(
        Preamble,
        chunk_id=st.binary(min_size=16, max_size=16),
        header_length=st.integers(0, CHUNK_HEADER_BYTES_MAX),
        payload_length=st.integers(0, CHUNK_PAYLOAD_BYTES_MAX),
        payload_digest=st.binary(min_size=32, max_size=32),
        header_digest=st.binary(min_size=32, max_size=32),
    )
)
def test_any_possible_preamble_round_trips(preamble: Preamble) -> None:
    assert decode_preamble(preamble.encode(), SOURCE) == preamble
    longer = replace(preamble, header_length=CHUNK_HEADER_BYTES_MAX + 1)
    refused(lambda data: decode_preamble(data, SOURCE), longer.encode(), SOURCE)


# -- fuzzing -----------------------------------------------------------------------------------------------

Mutation = Callable[[random.Random, bytearray], None]


def flip_bits(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def put_number(chance: random.Random, data: bytearray) -> None:
    number = chance.choice([0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 1 << 31, 0xFFFF_FFFF, 1 << 63, HUGE])
    width = chance.choice([1, 2, 4, 8])
    place = chance.randrange(len(data))
    data[place : place + width] = (number % (1 << 8 * width)).to_bytes(width, "little")


def cut_out(chance: random.Random, data: bytearray) -> None:
    place = chance.randrange(len(data))
    del data[place : place + chance.randint(1, 9)]


def copy_within(chance: random.Random, data: bytearray) -> None:
    start, place = chance.randrange(len(data)), chance.randrange(len(data))
    data[place:place] = data[start : start + chance.randint(1, 30)]


MUTATIONS: list[Mutation] = [flip_bits, put_number, cut_out, copy_within]


def test_mutated_headers_with_right_digests_give_damaged_or_a_header() -> None:
    """40,000 headers, each a few changes away from a good one."""
    chance = random.Random(20_240_229)
    good = [PACKED, decode_chunk(sample_chunk(), SOURCE)[1].encode()]
    refusals = 0
    for _ in range(40_000):
        header = bytearray(chance.choice(good))
        for mutate in chance.choices(MUTATIONS, k=chance.randint(1, 3)):
            mutate(chance, header)
        try:
            _, decoded, payload = decode_chunk(chunk_object(bytes(header)), SOURCE)
        except Damaged as error:
            assert str(error).startswith("chunk 42: offset ")
            refusals += 1
        else:
            is_file = decoded.ops == Op.FILE
            assert (decoded.offsets.astype(int) + decoded.lengths)[is_file].max(initial=0) <= len(payload)
    assert 30_000 < refusals < 40_000
