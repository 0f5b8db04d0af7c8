"""A source that takes the place of another while it is read."""

from dieselfs.chunk_source import Excerpts
from dieselfs_client.job.changing_source import ChangingSource
from tests.support.dataset import TreeEntry, pack_entries

CONTENT = b"content of a"
PACKED = pack_entries([TreeEntry(b"a", 0o100644, 0, CONTENT), TreeEntry(b"b", 0o100644, 0, b"b" * 100)])


def test_each_request_goes_to_the_source_of_the_moment_and_ends_there() -> None:
    first, second = PACKED.source(), PACKED.source()
    changing = ChangingSource(first)
    (extent,) = PACKED.snapshot.extents(PACKED.snapshot.require(b"a"))
    under_way = changing.fetch_many({extent.chunk: [extent]})
    changing.change(lambda: second)
    (arrival,) = under_way
    ((chunk, brought),) = arrival.items()
    assert chunk == extent.chunk and isinstance(brought, Excerpts) and bytes(brought[0]) == CONTENT
    assert first.fetched_extents == [extent] and not second.fetched_extents

    payload = bytearray(PACKED.snapshot.chunk_payload_length(chunk))
    changing.fetch_chunk_into(chunk, memoryview(payload))
    assert changing.fetch_chunk(chunk) == payload
    assert changing.fetch_extent(extent) == CONTENT
    assert changing.together([chunk]) == [[chunk]]
    assert second.fetched_chunks == [chunk] * 2 and second.fetched_extents == [extent]
    assert not first.fetched_chunks
