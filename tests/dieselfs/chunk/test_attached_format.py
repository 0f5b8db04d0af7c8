"""The chunk format: attached chunks, whose objects end behind the header."""

import msgpack
import pytest
from xxhash import xxh3_64_intdigest

from dieselfs.chunk.format import (
    PREAMBLE_BYTES,
    Preamble,
    decode_chunk,
    decode_header,
    decode_preamble,
    decode_stored,
)
from dieselfs.digests import digest_of
from tests.support.chunks import (
    CHUNK_ID,
    DATASET_ID,
    SOURCE_PAYLOAD,
    attached_chunk,
    sample_chunk,
    sample_fields,
)
from tests.support.chunks import SOURCE as ATTACHED_SOURCE
from tests.support.decoders import check_decoder, refused

SOURCE = "chunk 42"


def stored(data: bytes) -> object:
    return decode_stored(data, SOURCE)


def test_an_attached_chunk_ends_behind_its_header() -> None:
    data = attached_chunk()
    preamble, header = decode_stored(data, SOURCE, CHUNK_ID, DATASET_ID)
    assert preamble.is_attached and preamble.encode() == data[:PREAMBLE_BYTES]
    assert preamble.stored_length == len(data) == preamble.object_length - len(SOURCE_PAYLOAD)
    assert header.source == ATTACHED_SOURCE
    assert header.encode() == data[PREAMBLE_BYTES:]
    assert header.offsets.tolist() == [0, 0, 512]
    check_decoder(stored, data, SOURCE)
    whole = decode_chunk(data + SOURCE_PAYLOAD, SOURCE)
    assert bytes(whole[2]) == SOURCE_PAYLOAD


def test_the_object_of_an_ordinary_chunk_has_its_payload() -> None:
    preamble, _ = decode_stored(sample_chunk(), SOURCE)
    assert not preamble.is_attached and preamble.stored_length == preamble.object_length
    check_decoder(stored, sample_chunk(), SOURCE)


def test_every_flipped_bit_of_an_attached_chunk_is_found() -> None:
    data = bytearray(attached_chunk())
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        refused(stored, bytes(data), SOURCE)
        data[place] ^= 1 << place % 8


def test_a_flag_that_is_not_known_is_refused() -> None:
    preamble, _ = decode_stored(attached_chunk(), SOURCE)
    for flags in (0x4, 0x5, 0x8000):
        data = bytearray(preamble.encode())
        data[10:12] = flags.to_bytes(2, "little")
        data[104:] = xxh3_64_intdigest(bytes(data[:104])).to_bytes(8, "little")
        message = refused(lambda head: decode_preamble(head, SOURCE), bytes(data), SOURCE)
        assert f"(flags {flags:#x}) is not known" in message


@pytest.mark.parametrize("is_attached", [False, True])
def test_the_flag_decides_which_fields_there_are(is_attached: bool) -> None:
    fields = sample_fields() | (ATTACHED_SOURCE.fields() if not is_attached else {})
    packed = msgpack.packb(fields)
    preamble = Preamble(CHUNK_ID, len(packed), 5, bytes(32), digest_of(packed), is_attached)
    message = refused(lambda header: decode_header(preamble, header, SOURCE), packed, SOURCE)
    assert "fields, not" in message


def test_a_source_that_cannot_be_is_damage() -> None:
    packed = msgpack.packb(sample_fields() | ATTACHED_SOURCE.fields() | {"source": b"../x"})
    preamble = Preamble(CHUNK_ID, len(packed), 5, bytes(32), digest_of(packed), is_attached=True)
    message = refused(lambda header: decode_header(preamble, header, SOURCE), packed, SOURCE)
    assert message == (
        "chunk 42: offset 112: header: source '../x': it is neither an absolute path nor a URL"
    )
