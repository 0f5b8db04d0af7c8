"""The object with the heads of many chunks: what is read back, and that no damage of the index is missed."""

import os
from itertools import pairwise

import pytest

from dieselfs.chunk import bundle
from dieselfs.chunk.bundle import (
    BUNDLE_CHUNKS_MAX,
    BUNDLE_PREAMBLE_BYTES,
    bundle_of,
    bundled_id,
    decode_bundle,
    decode_index,
    encode_bundle,
    index_bytes,
    is_bundled,
    new_bundle_id,
    number_of,
)
from dieselfs.chunk.ids import ChunkIdSource, chunk_time_s, earliest_chunk_id
from dieselfs.errors import Damaged

MADE = ChunkIdSource(lambda: 1_700_000_000.0, b"\x02" * 6, lambda: 7, 0).next()
BUNDLE = new_bundle_id(MADE)


def heads_of(data: bytes, bundle_id: bytes = BUNDLE) -> list[bytes]:
    """As a reader gets them, from ranges."""
    length = index_bytes(data[:BUNDLE_PREAMBLE_BYTES], bundle_id)
    places = decode_index(data[BUNDLE_PREAMBLE_BYTES : BUNDLE_PREAMBLE_BYTES + length], bundle_id).tolist()
    return [data[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize("count", [1, 2, BUNDLE_CHUNKS_MAX])
def test_heads_are_read_back(count: int) -> None:
    heads = [os.urandom(1 + number % 5) for number in range(count)]
    data = encode_bundle(BUNDLE, heads)
    assert heads_of(data) == heads and data.endswith(heads[-1])


def test_the_id_of_a_chunk_names_its_bundle_and_follows_it() -> None:
    ids = [bundled_id(BUNDLE, number) for number in (1, 2, 255, 256, BUNDLE_CHUNKS_MAX)]
    assert ids == sorted(ids) and ids[0] > BUNDLE
    assert {bundle_of(each) for each in ids} == {BUNDLE}
    assert [number_of(each) for each in (BUNDLE, *ids)] == [0, 1, 2, 255, 256, BUNDLE_CHUNKS_MAX]
    assert all(is_bundled(each) and chunk_time_s(each) == chunk_time_s(MADE) for each in (BUNDLE, *ids))
    assert not is_bundled(MADE) and not is_bundled(earliest_chunk_id(5))
    assert new_bundle_id(MADE) != new_bundle_id(MADE)


def test_every_changed_byte_of_preamble_and_index_is_found() -> None:
    data = encode_bundle(BUNDLE, [b"abc", b"de"])
    for place in range(len(data) - 5):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(Damaged, match=r"bundle \S+: offset \d+"):
            heads_of(bytes(changed))
    with pytest.raises(Damaged, match="offset 12: bundle"):
        heads_of(data, new_bundle_id(MADE))
    with pytest.raises(Damaged, match="only 5 bytes"):
        heads_of(data[:5])


def test_only_a_whole_object_is_a_bundle() -> None:
    data = encode_bundle(BUNDLE, [b"abc", b"de"])
    found = [(number_of(each), bytes(head)) for each, head in decode_bundle(data, BUNDLE)]
    assert found == [(1, b"abc"), (2, b"de")]
    for wrong in (data + b"f", *(data[:length] for length in range(len(data)))):
        with pytest.raises(Damaged, match=r"bundle \S+: "):
            list(decode_bundle(wrong, BUNDLE))


def test_an_index_that_does_not_ascend_is_damaged() -> None:
    """Also with a valid checksum."""
    assert bundle.MAGIC[:4] == b"\x89DSL"
    with pytest.raises(Damaged, match="index is damaged"):
        heads_of(encode_bundle(BUNDLE, [b"abc", b"", b"d"]))
