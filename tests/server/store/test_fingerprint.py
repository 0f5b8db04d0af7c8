"""A fingerprint tells every change of a copy, whichever part of it is read."""

import random

import pytest

from dieselfs_server.store.fingerprint import BLOCK_BYTES, Fingerprint

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 77]


@pytest.mark.parametrize("size", SIZES)
def test_any_range_of_a_good_copy_is_intact(size: int) -> None:
    content = random.Random(size).randbytes(size)
    fingerprint = Fingerprint.of(content)
    assert fingerprint.length == size
    source = random.Random(1)
    for _ in range(50):
        offset = source.randint(0, size)
        length = source.randint(0, size - offset)
        start, end = fingerprint.blocks_around(offset, length)
        assert start <= offset and offset + length <= max(end, start) and end <= size
        assert end - start < length + 2 * BLOCK_BYTES
        assert fingerprint.is_intact(start, content[start:end])


@pytest.mark.parametrize("size", SIZES[1:])
def test_any_flipped_bit_is_found(size: int) -> None:
    content = random.Random(size).randbytes(size)
    fingerprint = Fingerprint.of(content)
    source = random.Random(2)
    for _ in range(50):
        place = source.randrange(size)
        damaged = bytearray(content)
        damaged[place] ^= 1 << source.randrange(8)
        start, end = fingerprint.blocks_around(place, 1)
        assert not fingerprint.is_intact(start, damaged[start:end])
