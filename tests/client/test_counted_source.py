from collections import ChainMap

import pytest

from dieselfs.chunk_source import Excerpts
from dieselfs.errors import Damaged
from dieselfs_client.counted_source import CountedSource
from tests.support.dataset import TreeEntry, pack_entries


def test_what_arrives_is_counted_and_what_fails_is_not() -> None:
    packed = pack_entries(
        [TreeEntry(b"%d" % n, 0o100644, 0, bytes([n]) * 100) for n in range(8)], chunk_bytes=400
    )
    source = packed.source()
    counted = CountedSource(source)
    extents = [packed.snapshot.extents(packed.snapshot.require(b"%d" % n))[0] for n in range(4)]
    assert counted.fetch_chunk(0) == source.fetch_chunk(0)
    assert counted.fetch_extent(extents[1]) == bytes([1]) * 100
    many = ChainMap(
        *counted.fetch_many({0: extents[:2], 1: packed.snapshot.extents(packed.snapshot.require(b"5"))})
    )
    assert {chunk: isinstance(brought, Excerpts) and len(brought) for chunk, brought in many.items()} == {
        0: 2,
        1: 1,
    }
    assert counted.together([1, 0]) == [[1], [0]]
    source.payloads[0][0] ^= 1
    with pytest.raises(Damaged):
        counted.fetch_chunk(0)
    assert isinstance(next(counted.fetch_many({0: extents}))[0], Damaged)
    assert counted.figures() == {
        "chunks": 1,
        "chunk_bytes": 400,
        "range_requests": 3,
        "ranges": 4,
        "range_bytes": 400,
    }
