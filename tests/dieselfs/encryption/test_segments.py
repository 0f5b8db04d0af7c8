"""Extents: they open where they were sealed, in whole and by segment, and nowhere else."""

import os

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from dieselfs.encryption.segments import (
    SEGMENT_BYTES,
    TRAILER_BYTES,
    extent_context,
    open_extent,
    plain_length,
    seal_extent,
    sealed_length,
    segment_key,
)
from dieselfs.errors import Damaged

KEY = bytes(range(32))
LENGTHS = (1, 100, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES + 7)
CONTEXT = extent_context(b"train/cat.jpg", 5, 0, 5, 7)


def opened(key: bytes, context: bytes, sealed: bytes, length: int, first: int = 0) -> bytes:
    plain = bytearray(length)
    open_extent(key, context, memoryview(sealed), memoryview(plain), first)
    return bytes(plain)


@pytest.mark.parametrize("length", LENGTHS)
def test_what_was_sealed_opens_whole_and_by_segment(length: int) -> None:
    content = os.urandom(length)
    sealed = seal_extent(KEY, CONTEXT, content)
    assert len(sealed) == sealed_length(length)
    assert plain_length(len(sealed)) == length
    assert opened(KEY, CONTEXT, sealed, length) == content
    last = (length - 1) // SEGMENT_BYTES
    rest = sealed[last * SEGMENT_BYTES : length] + sealed[-TRAILER_BYTES:]
    assert opened(KEY, CONTEXT, rest, length - last * SEGMENT_BYTES, last) == content[last * SEGMENT_BYTES :]


@pytest.mark.parametrize("length", LENGTHS)
def test_an_extent_is_opened_where_it_is(length: int) -> None:
    content = os.urandom(length)
    memory = memoryview(bytearray(seal_extent(KEY, CONTEXT, content)))
    open_extent(KEY, CONTEXT, memory, memory[:length])
    assert memory[:length] == content


def test_the_same_bytes_are_never_sealed_alike() -> None:
    assert len({seal_extent(KEY, CONTEXT, b"meow") for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "context",
    [
        extent_context(b"train/dog.jpg", 5, 0, 5, 7),
        extent_context(b"train/cat.jpg", 6, 0, 5, 7),
        extent_context(b"train/cat.jpg", 5, 1, 5, 7),
        extent_context(b"train/cat.jpg", 5, 0, 4, 7),
        extent_context(b"train/cat.jpg", 5, 0, 5, 8),
    ],
)
def test_an_extent_opens_at_its_place_alone(context: bytes) -> None:
    sealed = seal_extent(KEY, CONTEXT, b"meow\n")
    with pytest.raises(Damaged):
        opened(KEY, context, sealed, 5)
    with pytest.raises(Damaged):
        opened(bytes(32), CONTEXT, sealed, 5)


def test_no_bit_can_be_changed_and_no_segment_moved() -> None:
    content = os.urandom(2 * SEGMENT_BYTES)
    sealed = seal_extent(KEY, CONTEXT, content)
    for place in (0, SEGMENT_BYTES, len(content), len(content) + 20, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(Damaged):
            opened(KEY, CONTEXT, bytes(changed), len(content))
    bodies, trailers = sealed[: len(content)], sealed[len(content) :]
    swapped = (
        bodies[SEGMENT_BYTES:] + bodies[:SEGMENT_BYTES] + trailers[TRAILER_BYTES:] + trailers[:TRAILER_BYTES]
    )
    with pytest.raises(Damaged):
        opened(KEY, CONTEXT, swapped, len(content))


def test_the_key_of_a_segment_is_that_of_hkdf() -> None:
    info = b"dieselfs segment 1" + bytes(16)
    assert segment_key(KEY, bytes(16)) == HKDFExpand(SHA256(), 32, info).derive(KEY)


def test_a_length_that_no_extent_has_is_damage() -> None:
    for length in (1, TRAILER_BYTES - 1, SEGMENT_BYTES + TRAILER_BYTES + 5):
        with pytest.raises(Damaged):
            plain_length(length)
