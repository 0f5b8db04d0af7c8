"""Values come back as they were put in, and not at all if a bit of them, their name, or their key differs."""

import pytest

from dieselfs.chunk.format import PREAMBLE_BYTES, Op
from dieselfs.errors import Damaged
from dieselfs.records import DatasetRecord
from dieselfs_server.metadata.redis.values import (
    ChunkState,
    DatasetKeys,
    DatasetState,
    DeletedState,
    Kind,
    PathState,
    Registered,
    StoredExtent,
    bodies_of,
    fixed_fields,
    number_body,
    number_of,
    pending_body,
    pending_of,
    receipt_body,
    receipt_of,
    registry_keys,
    seal,
    unseal,
)
from dieselfs_server.metadata.rules import Effects
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
    state = ChunkState(7, 100, 200, 11, b"\1" * 32, b"\xff" * 32)
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


STANDINGS = [
    PathState(),
    PathState(chunk_id(1), 65535, 1 << 31, b"\xff" * 16, 1 << 62, 1 << 60, -5, 0o7777, Kind.FILE),
    PathState(
        kind=Kind.SYMLINK, version=2, target=b"../\xff", gathered=((3, 9, 4), (4, 1 << 60, 7)), sequence=6
    ),
    PathState(
        kind=Kind.SPANNING, version=2, size=9, mtime_ns=1, mode=0o644, gathered=((2, 9, 9),), sequence=1
    ),
    PathState(kind=Kind.NOTHING, gathered=((2, 9, 5),), sequence=1),
    PathState(chunk_id(3), 2, kind=Kind.DELETE, version=7),
]


@pytest.mark.parametrize("path_state", STANDINGS)
def test_values(path_state: PathState) -> None:
    assert PathState.of(path_state.body()) == path_state


def test_a_chunk_at_a_time() -> None:
    puts = [
        Put(b"a", 1, size=3),
        Put(b"e", 2),
        Put(b"d", 3, Op.DIRECTORY, mode=0o711),
        Put(b"l", 4, Op.SYMLINK, target=b"t\xff"),
        delete(b"g", 5),
    ]
    _, header = pack(puts, chunk_id(9))
    bodies = bodies_of(chunk_id(9), header)
    for entry, (put, body) in enumerate(zip(puts, bodies, strict=True)):
        path_state = PathState.of(body)
        assert path_state.body() == body
        assert (path_state.kind, path_state.version, path_state.size, path_state.target) == (
            put.op,
            put.version,
            put.size,
            put.target,
        )
        assert (path_state.chunk_id, path_state.entry) == (chunk_id(9), entry)
        assert path_state.is_file == (put.op == Op.FILE)
        assert path_state.is_live == (put.op != Op.DELETE)
    columns = fixed_fields([body + b"sealseal" for body in bodies], 8)
    assert columns["version"].tolist() == [1, 2, 3, 4, 5]
    assert columns["target_length"].tolist() == [0, 0, 0, 2, 0]


def test_the_order_of_what_counts() -> None:
    ranked = [
        PathState(),
        PathState(kind=Kind.SPANNING, version=1, size=5),
        PathState(kind=Kind.SPANNING, version=1, size=6),
        PathState(chunk_id(1), 9, kind=Kind.FILE, version=1),
        PathState(chunk_id(2), 1, kind=Kind.DELETE, version=1),
        PathState(chunk_id(2), 2, kind=Kind.FILE, version=1),
        PathState(kind=Kind.SPANNING, version=2, size=1),
    ]
    assert sorted(ranked, key=lambda path_state: path_state.rank) == ranked


def test_extents() -> None:
    extent = StoredExtent(chunk_id(1), 65535, 1 << 31, b"\xff" * 16, 0o7777, -1)
    assert StoredExtent.of(extent.body()) == extent
