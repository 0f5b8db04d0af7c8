"""What stays in memory, what passes through, and how the memory is split between them."""

import mmap
import random

import pytest

from dieselfs.cache.payloads import LOOKUP_SHARE, TRANSIT_BYTES, Payload, Payloads, Room
from dieselfs.limits import GIB, MIB


def payload(length_bytes: int, fill: int = 0) -> Payload:
    memory = mmap.mmap(-1, length_bytes)
    memory[:] = bytes([fill]) * length_bytes
    return Payload.of(memory)


def test_slices_of_the_memory_are_copies_and_those_of_the_view_are_not_writable() -> None:
    one = payload(100, 7)
    assert one.memory[10:13] == bytes([7]) * 3
    assert type(one.memory[10:13]) is bytes
    assert one.view[10:13] == bytes([7]) * 3
    with pytest.raises(TypeError):
        one.view[0] = 1


@pytest.mark.parametrize("memory_bytes", [1, 10 * MIB, 512 * MIB, 100 * GIB])
@pytest.mark.parametrize("dataset_bytes", [0, 1, 9 * MIB, 400 * MIB, 1000 * GIB])
def test_the_parts_are_never_more_than_the_whole(memory_bytes: int, dataset_bytes: int) -> None:
    room = Room.of(memory_bytes, dataset_bytes)
    assert room.kept + room.transit + room.lookups <= memory_bytes
    assert min(room.kept, room.transit, room.lookups) >= 0
    assert room.lookups == memory_bytes // LOOKUP_SHARE
    assert room.transit <= TRANSIT_BYTES


def test_a_dataset_that_fits_is_kept_and_a_larger_one_leaves_room_to_pass_through() -> None:
    assert Room.of(512 * MIB, 448 * MIB) == Room(448 * MIB, 0, 64 * MIB)
    large = Room.of(8 * GIB, 100 * GIB)
    assert large.transit == TRANSIT_BYTES and large.kept == 7 * GIB - TRANSIT_BYTES


def test_what_comes_first_stays_and_the_rest_passes_through_least_recently_used_first() -> None:
    payloads = Payloads(Room(kept=250, transit=300, lookups=0))
    for chunk in range(5):
        payloads.add(chunk, payload(100))
    assert set(payloads.kept) == {0, 1} and payloads.kept_bytes == 200
    assert payloads.get(2) is not None  # used now, so 3 goes before it
    payloads.add(5, payload(100))
    assert [chunk for chunk in range(6) if payloads.get(chunk) is not None] == [0, 1, 2, 4, 5]
    assert payloads.transit_bytes == 300
    assert payloads.would_keep(50) and not payloads.would_keep(51)
    payloads.add(6, payload(50))
    assert 6 in payloads.kept


def test_what_fits_nowhere_is_said_so() -> None:
    payloads = Payloads(Room(kept=100, transit=200, lookups=0))
    assert payloads.has_room(100) and payloads.has_room(200) and not payloads.has_room(201)


def test_a_kept_payload_has_a_slot_that_nobody_else_ever_gets() -> None:
    payloads = Payloads(Room(kept=200, transit=100, lookups=0))
    for chunk in (7, 5, 9):
        payloads.add(chunk, payload(100, chunk))
    for chunk in (7, 5):
        slot = payloads.kept[chunk].slot
        assert payloads.memories[slot][:1] == payloads.views[slot][:1] == bytes([chunk])
    passing = payloads.get(9)
    assert passing is not None and passing.slot == -1
    payloads.clear()
    payloads.add(3, payload(100))
    assert payloads.get(3) is None and not payloads.memories
    assert payloads.kept_bytes == payloads.transit_bytes == 0


def test_in_random_order_the_hits_are_the_kept_share() -> None:
    """Nothing does better, and the least recently used one does far worse: half the memory gives half the hits."""
    chunks, rounds = list(range(40)), 6
    payloads = Payloads(Room(kept=18, transit=2, lookups=0))
    order, hits = random.Random(3), 0
    for epoch in range(rounds):
        order.shuffle(chunks)
        for chunk in chunks:
            if payloads.get(chunk) is not None:
                hits += epoch > 0
            else:
                payloads.add(chunk, payload(1))
    assert hits >= 18 * (rounds - 1)
