"""Extents: they open where they were sealed, in whole and by segment, and nowhere else."""

import os

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from dieselfs.encryption.segments import (
    SEGMENT_BYTES,
    TRAILER_BYTES,
    derived_key,
    extent_context,
    open_extent,
    open_segment,
    plain_length,
    seal_extent,
    sealed_length,
)
from dieselfs.errors import Damaged

KEY = bytes(range(32))
LENGTHS = (1, 100, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES + 7)
CONTEXT = extent_context(b"train/cat.jpg", 5, 0, 5, 7)


@pytest.mark.parametrize("length", LENGTHS)
def test_what_was_sealed_opens_whole_and_by_segment(length: int) -> None:
    content = os.urandom(length)
    sealed = seal_extent(KEY, CONTEXT, content)
    assert len(sealed) == sealed_length(length)
    assert plain_length(len(sealed)) == length
    assert open_extent(KEY, CONTEXT, sealed, length) == content
    last = (length - 1) // SEGMENT_BYTES
    body = sealed[last * SEGMENT_BYTES : length]
    assert open_segment(KEY, CONTEXT, last, body, sealed[-TRAILER_BYTES:]) == content[last * SEGMENT_BYTES :]


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
        open_extent(KEY, context, sealed, 5)
    with pytest.raises(Damaged):
        open_extent(bytes(32), CONTEXT, sealed, 5)


def test_no_bit_can_be_changed_and_no_segment_moved() -> None:
    content = os.urandom(2 * SEGMENT_BYTES)
    sealed = seal_extent(KEY, CONTEXT, content)
    for place in (0, SEGMENT_BYTES, len(content), len(content) + 20, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(Damaged):
            open_extent(KEY, CONTEXT, bytes(changed), len(content))
    bodies, trailers = sealed[: len(content)], sealed[len(content) :]
    swapped = (
        bodies[SEGMENT_BYTES:] + bodies[:SEGMENT_BYTES] + trailers[TRAILER_BYTES:] + trailers[:TRAILER_BYTES]
    )
    with pytest.raises(Damaged):
        open_extent(KEY, CONTEXT, swapped, len(content))


def test_the_derived_key_is_that_of_hkdf() -> None:
    info = b"dieselfs segment 1" + bytes(16)
    assert derived_key(KEY, info) == HKDFExpand(SHA256(), 32, info).derive(KEY)


def test_a_length_that_no_extent_has_is_damage() -> None:
    for length in (1, TRAILER_BYTES - 1, SEGMENT_BYTES + TRAILER_BYTES + 5):
        with pytest.raises(Damaged):
            plain_length(length)
