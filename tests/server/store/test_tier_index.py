"""Who has to leave the fast tier for whom."""

import random
from array import array

import pytest

from dieselfs_server.store.tier_index import BLOCK_BYTES, BUSY_S, Copy, Fingerprint, TierIndex
from tests.conformance.chunk_store_suite import chunk_at

A, B, C = (bytes([number]) * 16 for number in range(3))


class Tier:
    """An index of ten bytes, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.index = TierIndex(10, lambda: self.now_s)

    def add(self, dataset_id: bytes, *numbers: int, length: int = 2) -> None:
        for number in numbers:
            copy = Copy(length, Fingerprint(length, array("Q")))
            self.index.add(dataset_id, chunk_at(number), copy)

    def victims(self, dataset_id: bytes, length: int) -> list[tuple[bytes, int]] | None:
        found = self.index.victims(dataset_id, length)
        return (
            None
            if found is None
            else [(other, int.from_bytes(chunk_id[:4], "big")) for other, chunk_id in found]
        )


def test_while_there_is_room_nobody_leaves() -> None:
    tier = Tier()
    tier.add(A, 1, 2)
    assert tier.victims(B, 6) == []
    assert tier.victims(B, 7) is None  # A is busy
    assert tier.index.used_bytes == 4


def test_what_was_not_read_for_longest_leaves_first() -> None:
    tier = Tier()
    tier.add(A, 1, 2)
    tier.add(B, 3, 4, 5)
    tier.now_s = 1
    tier.index.read(B, chunk_at(3))
    tier.now_s = 2
    tier.index.read(A, chunk_at(9))  # not there, but the dataset is read
    tier.now_s = 2 + BUSY_S
    assert tier.victims(C, 1) == [(B, 4)]
    assert tier.victims(C, 6) == [(B, 4), (B, 5), (B, 3)]
    assert tier.victims(C, 10) == [(B, 4), (B, 5), (B, 3), (A, 1), (A, 2)]
    assert tier.victims(C, 11) is None


def test_a_busy_dataset_stays() -> None:
    tier = Tier()
    tier.add(A, 1, 2)
    tier.add(B, 3, 4, 5)
    tier.now_s = BUSY_S
    tier.index.read(B, chunk_at(3))
    tier.now_s = 2 * BUSY_S - 1
    assert tier.victims(C, 4) == [(A, 1), (A, 2)]
    assert tier.victims(C, 5) is None


def test_a_dataset_does_not_push_out_its_own() -> None:
    tier = Tier()
    tier.add(A, 1, 2, 3, 4, 5)
    tier.now_s = 10 * BUSY_S
    assert tier.victims(A, 1) is None


def test_what_was_found_leaves_before_anything_else() -> None:
    tier = Tier()
    tier.index.add(A, chunk_at(1), Copy(8, None))
    assert tier.victims(B, 4) == [(A, 1)]
    copy = tier.index.read(A, chunk_at(1))
    assert copy is not None and copy.fingerprint is None and copy.length == 8
    assert tier.victims(B, 4) is None


def test_bytes_are_counted_once() -> None:
    tier = Tier()
    for _ in range(2):
        tier.add(A, 1, length=3)
    tier.add(A, 2, length=4)
    assert tier.index.used_bytes == 7
    for _ in range(2):
        tier.index.remove(A, chunk_at(1))
    assert tier.index.used_bytes == 4 and not tier.index.holds(A, chunk_at(1))
    tier.add(B, 1)
    tier.index.remove_dataset(A)
    tier.index.remove_dataset(A)
    assert tier.index.used_bytes == 2 and tier.index.read(A, chunk_at(2)) is None


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
