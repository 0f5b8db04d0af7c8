from collections import ChainMap

import pytest

from dieselfs.errors import Damaged
from dieselfs.sources.interface import CountedSource, FetchMetrics, Slices, Wanted, fetch_extent
from dieselfs.telemetry.registry import Registry
from tests.support.dataset import TreeEntry, pack_entries


def test_what_arrives_is_counted_and_what_fails_is_not() -> None:
    packed = pack_entries(
        [TreeEntry(b"%d" % n, 0o100644, 0, bytes([n]) * 100) for n in range(8)], chunk_bytes=400
    )
    source = packed.source()
    metrics = Registry()
    counted = CountedSource(lambda: source, FetchMetrics(metrics))
    extents = [packed.snapshot.extents(packed.snapshot.require(b"%d" % n))[0] for n in range(4)]
    assert counted.fetch_chunk(0) == source.fetch_chunk(0)
    assert fetch_extent(counted, extents[1]) == bytes([1]) * 100
    many = ChainMap(
        *counted.fetch_many(
            Wanted({0: extents[:2], 1: packed.snapshot.extents(packed.snapshot.require(b"5"))})
        )
    )
    assert {chunk: isinstance(brought, Slices) and len(brought) for chunk, brought in many.items()} == {
        0: 2,
        1: 1,
    }
    assert counted.together([1, 0]) == [[1], [0]]
    assert counted.fetch_blocks(1, 0, 1) == source.payloads[1]
    source.payloads[0][0] ^= 1
    with pytest.raises(Damaged):
        counted.fetch_chunk(0)
    assert isinstance(next(counted.fetch_many(Wanted({0: extents})))[0], Damaged)
    assert metrics.as_dict()["fetches"] == {
        "chunks": 1,
        "chunk_bytes": 400,
        "range_requests": 3,
        "ranges": 4,
        "range_bytes": 400,
        "blocks": 1,
        "block_bytes": 400,
    }


def test_each_request_goes_to_the_source_of_the_moment_and_ends_there() -> None:
    packed = pack_entries([TreeEntry(b"a", 0o100644, 0, b"content"), TreeEntry(b"b", 0o100644, 0, b"b" * 99)])
    first, second = packed.source(), packed.source()
    current = first
    counted = CountedSource(lambda: current, FetchMetrics(Registry()))
    (extent,) = packed.snapshot.extents(packed.snapshot.require(b"a"))
    under_way = counted.fetch_many(Wanted({extent.chunk: [extent, extent]}))
    bringing = next(under_way)
    current = second
    assert not list(under_way) and isinstance(bringing[extent.chunk], Slices)
    assert first.fetched_extents == [extent] * 2 and not second.fetched_extents

    payload = bytearray(packed.snapshot.chunk_payload_length(extent.chunk))
    counted.fetch_chunk_into(extent.chunk, memoryview(payload))
    assert counted.fetch_chunk(extent.chunk) == payload
    assert bytes(fetch_extent(counted, extent)) == b"content"
    assert second.fetched_chunks == [extent.chunk] * 2 and second.fetched_extents == [extent]
    assert not first.fetched_chunks
