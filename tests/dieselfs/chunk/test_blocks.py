"""Blocks cover what is asked for, and their checksums tell them apart."""

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dieselfs.chunk.blocks import BLOCK_BYTES, block_checksums, block_range, bytes_of


@given(st.integers(0, 1 << 26), st.integers(1, 1 << 22))
def test_blocks_cover_a_range_and_no_more(offset: int, length: int) -> None:
    first, end = block_range(offset, length)
    start, covered = bytes_of(first, end, 1 << 30)
    assert start <= offset < start + BLOCK_BYTES
    assert offset + length <= start + covered < offset + length + BLOCK_BYTES


@given(st.integers(0, 5 * BLOCK_BYTES))
def test_every_block_of_a_payload_has_a_checksum(length: int) -> None:
    payload = os.urandom(length)
    checksums = block_checksums(payload)
    _, blocks = block_range(0, length)
    assert checksums.dtype == np.uint64 and len(checksums) == blocks
    for number, checksum in enumerate(checksums.tolist()):
        start, covered = bytes_of(number, number + 1, length)
        assert checksum == xxh3_64_intdigest(payload[start : start + covered])


def test_the_last_block_ends_with_the_payload() -> None:
    assert bytes_of(0, 3, 2 * BLOCK_BYTES + 7) == (0, 2 * BLOCK_BYTES + 7)
    assert bytes_of(2, 3, 2 * BLOCK_BYTES + 7) == (2 * BLOCK_BYTES, 7)
