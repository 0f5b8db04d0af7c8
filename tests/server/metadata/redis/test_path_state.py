"""What stands at a path: one by one and a chunk at a time, the same bytes; and which of two counts."""

import pytest

from dieselfs.chunk.format import Op
from dieselfs_server.metadata.redis.path_state import Kind, PathState, StoredExtent, bodies_of, fixed_fields
from tests.support.metadata_chunks import Put, chunk_id, delete, pack

STANDINGS = [
    PathState(),
    PathState(Kind.FILE, 1 << 62, 1 << 60, -5, 0o7777, chunk_id(1), 65535, 1 << 31, (1 << 64) - 1),
    PathState(Kind.SYMLINK, 2, target=b"../\xff", gathered=((3, 9, 4), (4, 1 << 60, 7)), sequence=6),
    PathState(Kind.SPANNING, 2, 9, 1, 0o644, gathered=((2, 9, 9),), sequence=1),
    PathState(Kind.NOTHING, gathered=((2, 9, 5),), sequence=1),
    PathState(Kind.DELETE, 7, chunk_id=chunk_id(3), entry=2),
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
        PathState(Kind.SPANNING, 1, 5),
        PathState(Kind.SPANNING, 1, 6),
        PathState(Kind.FILE, 1, chunk_id=chunk_id(1), entry=9),
        PathState(Kind.DELETE, 1, chunk_id=chunk_id(2), entry=1),
        PathState(Kind.FILE, 1, chunk_id=chunk_id(2), entry=2),
        PathState(Kind.SPANNING, 2, 1),
    ]
    assert sorted(ranked, key=lambda path_state: path_state.rank) == ranked


def test_extents() -> None:
    extent = StoredExtent(chunk_id(1), 65535, 1 << 31, (1 << 64) - 1, 0o7777, -1)
    assert StoredExtent.of(extent.body()) == extent
    assert len(extent.body()) == StoredExtent.BODY_BYTES
