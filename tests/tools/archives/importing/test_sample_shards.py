"""The table of offsets of a shard, and the sizes of a sample."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.sample_shards import samples, values

CONTENTS = st.lists(st.binary(max_size=20), max_size=5)


def shard(contents: list[bytes], notes: bytes = b"") -> bytes:
    begin = 4 * (len(contents) + 2) + len(notes)
    offsets = [begin + sum(map(len, contents[:count])) for count in range(len(contents) + 1)]
    return struct.pack(f"<{len(contents) + 2}I", len(contents), *offsets) + notes + b"".join(contents)


@given(CONTENTS, st.binary(max_size=30))
def test_samples_in_their_order(contents: list[bytes], notes: bytes) -> None:
    packed = shard(contents, notes)
    found = list(samples(io.BytesIO(packed)))
    assert [sample for _, sample in found] == contents
    assert [packed[begin : begin + len(sample)] for begin, sample in found] == contents


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read_without_harm(noise: bytes) -> None:
    try:
        found = list(samples(io.BytesIO(noise)))
    except Damaged:
        return
    assert sum(map(len, found)) <= len(noise)


@given(st.lists(st.tuples(st.binary(max_size=9), st.booleans()), max_size=5))
def test_values_of_noted_and_of_fixed_size(parts: list[tuple[bytes, bool]]) -> None:
    sizes = [len(part) if is_fixed else None for part, is_fixed in parts]
    noted = b"".join(struct.pack("<I", len(part)) for part, is_fixed in parts if not is_fixed)
    sample = noted + b"".join(part for part, _ in parts)
    assert values(sample, sizes) == [part for part, _ in parts]
    with pytest.raises(Damaged):
        values(sample + b"x", sizes)
