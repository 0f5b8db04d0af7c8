"""Values come back as they were put in, and not at all if a single bit of them, their name, or their key differs."""

import pytest

from dieselfs.chunk.format import PREAMBLE_BYTES
from dieselfs.errors import Damaged
from dieselfs.records import DatasetRecord
from dieselfs_server.metadata.effects import Effects
from dieselfs_server.metadata.redis.keys import DatasetKeys, registry_keys
from dieselfs_server.metadata.redis.values import (
    ChunkState,
    DatasetState,
    DeletedState,
    Registered,
    number_body,
    number_of,
    pending_body,
    pending_of,
    receipt_body,
    receipt_of,
    seal,
    unseal,
)
from tests.support.metadata_chunks import NOW_NS, Put, chunk_id, delete, pack

KEYS = DatasetKeys(b"dieselfs:", "pets", bytes(8))


def test_a_seal_holds_value_name_and_key() -> None:
    value = seal(KEYS.chunks, b"name", b"body\0")
    assert unseal(KEYS.chunks, b"name", value) == b"body\0"
    for bit in range(len(value) * 8):
        altered = bytearray(value)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged, match="dlcmd rebuild dl://pets"):
            unseal(KEYS.chunks, b"name", bytes(altered))
    for key_pair, name, stored in (
        (KEYS.chunks, b"other", value),
        (KEYS.notes, b"name", value),
        (KEYS.chunks, b"name", value[1:]),
        (KEYS.chunks, b"name", b""),
    ):
        with pytest.raises(Damaged, match="key dieselfs:"):
            unseal(key_pair, name, stored)
    with pytest.raises(Damaged, match="dl://DATASET"):
        unseal(registry_keys(b"dieselfs:"), b"pets", value)


def test_records() -> None:
    state = DatasetState(DatasetRecord(bytes(16), "pets", 1, 2, -3, -(1 << 60), 5), is_dropped=True)
    assert DatasetState.of(state.body()) == state
    registered = Registered(b"i" * 16, b"t" * 8)
    assert Registered.of(registered.body()) == registered
    assert number_of(number_body(-(1 << 62))) == -(1 << 62)


def test_a_chunk_and_its_bitmap() -> None:
    state = ChunkState(7, 100, 200, 11, 1 << 127, b"\xff" * 32)
    assert ChunkState.of(state.body()) == state
    marked = DeletedState().marked([3], 5).marked([10, 0], 9)
    assert DeletedState.of(marked.body()) == marked
    record = state.record(chunk_id(1), marked)
    assert (record.deleted_entries, record.deleted, record.updated_ns) == (3, bytes([0b1001, 0b100]), 9)
    assert state.record(chunk_id(1), None).deleted == bytes(2)


def test_receipts() -> None:
    effects: Effects[bytes] = Effects(files=-2, total_bytes=1 << 60)
    effects.dead[chunk_id(1)] = [65535, 0]
    effects.members[b"x/\xff"] = -4
    assert vars(receipt_of(receipt_body(effects))) == vars(effects)


def test_a_pending_header() -> None:
    preamble, header = pack([Put(b"a", 1, size=3), delete(b"b", 2)], chunk_id(1))
    read, again, now_ns = pending_of(pending_body(preamble, header, NOW_NS), "chunk")
    assert (read, now_ns, again.encode()) == (preamble, NOW_NS, header.encode())
    with pytest.raises(Damaged):
        pending_of(pending_body(preamble, header, NOW_NS)[: PREAMBLE_BYTES // 2], "chunk")
