"""When the next snapshot is made from the last one and the chunks since, and when from all entries."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs.errors import Damaged, DieselfsError, NotFound, Unavailable
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.encoding import unsigned
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets import snapshots
from dieselfs_server.datasets.snapshots import Headers, content_since
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, delete, pack
from tests.support.snapshots import SOURCE, in_memory

NUMBERS = itertools.count(1)


class Chunks:
    """A metadata store, and the headers of the chunks that were applied to it."""

    def __init__(self, metadata: SqliteMetadata) -> None:
        self.metadata = metadata
        self.headers: dict[bytes, ChunkHeader] = {}
        self.read = 0
        self.applied: dict[bytes, set[bytes]] = {}  # by the digest of the snapshot

    def apply(self, puts: Sequence[Put]) -> bytes:
        identity = chunk_id(next(NUMBERS))
        preamble, header = pack(puts, identity)
        self.headers[identity] = header
        self.metadata.apply(DATASET_ID, preamble, header, NOW_NS)
        return identity

    def header(self, dataset_id: bytes, identity: bytes) -> ChunkHeader:
        self.read += 1
        return self.headers[identity]

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot(build_snapshot(self.metadata.entry_table(DATASET_ID)), SOURCE)
        self.applied[snapshot.digest] = {chunk.chunk_id for chunk in self.metadata.chunks(DATASET_ID)}
        return snapshot

    def since(self, base: Snapshot, header: Headers | None = None) -> bytes | None:
        made = content_since(base, self.applied[base.digest], self.metadata, header or self.header)
        if made is None:
            return None
        assert list(made.chunks) == self.metadata.chunks(DATASET_ID)
        return in_memory(lambda file: made.write(file, unsigned))


@pytest.fixture
def chunks() -> Iterator[Chunks]:
    with closing(SqliteMetadata(":memory:")) as metadata:
        metadata.create_dataset(DATASET, DATASET_ID)
        chunks = Chunks(metadata)
        chunks.apply([Put(b"train/%03d" % number, 1, size=5) for number in range(100)])
        yield chunks


def test_a_few_changes_are_applied_to_the_last_snapshot(chunks: Chunks) -> None:
    base = chunks.snapshot()
    chunks.apply([Put(b"train/new", 200, size=9), delete(b"train/007", 201)])
    chunks.apply([Put(b"val/1", 300, Op.SYMLINK, target=b"../train/new")])
    assert chunks.since(base) == bytes(chunks.snapshot().content)
    assert chunks.read == 2, "only the headers of the new chunks"


def test_a_file_counts_when_its_last_chunk_is_there(chunks: Chunks) -> None:
    base = chunks.snapshot()
    chunks.apply([Put(b"large", 200, size=9, place=0, length=4)])
    between = chunks.since(base)
    assert between == bytes(chunks.snapshot().content)
    chunks.apply([Put(b"large", 200, size=9, place=4, length=5)])
    assert chunks.since(Snapshot(between or b"", SOURCE)) == bytes(chunks.snapshot().content)


def test_what_the_chunks_do_not_say_is_read_from_the_metadata(
    chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = chunks.snapshot()
    assert chunks.since(base) is None, "nothing is new"
    chunks.apply([Put(b"a/%d" % number, 200, size=5) for number in range(11)])
    assert chunks.since(base) is None, "more than a tenth of the dataset"
    middle = chunks.snapshot()
    chunks.apply([Put(b"b", 300, size=5)])
    assert chunks.since(base) is None
    assert chunks.since(middle) == bytes(chunks.snapshot().content)
    monkeypatch.setattr(snapshots, "CHANGES_MAX", 0)
    assert chunks.since(middle) is None


@pytest.mark.parametrize("error", [Damaged, NotFound, Unavailable])
def test_a_header_that_cannot_be_read_is_no_obstacle(chunks: Chunks, error: type[DieselfsError]) -> None:
    base = chunks.snapshot()
    chunks.apply([Put(b"new", 200, size=9)])

    def unreadable(_dataset_id: bytes, _chunk_id: bytes) -> ChunkHeader:
        raise error("this chunk, or the whole object store")

    assert chunks.since(base, unreadable) is None


def test_a_chunk_that_purge_removed_may_have_deleted_something(chunks: Chunks) -> None:
    base = chunks.snapshot()
    gone = chunks.apply([Put(b"short-lived", 200, size=5)])
    chunks.apply([delete(b"short-lived", 201)])
    chunks.metadata.forget_chunk(DATASET_ID, gone)
    assert chunks.since(base) is None


def test_a_purge_of_dead_chunks_is_no_change(chunks: Chunks) -> None:
    dead = chunks.apply([Put(b"a", 200, size=5)])
    folders = chunks.apply([Put(b"b", 201, Op.DIRECTORY)])
    chunks.apply([Put(b"a", 202, size=6)])
    base = chunks.snapshot()
    listed = {base.chunk_id(number) for number in range(base.chunk_count)}
    assert not {dead, folders} & listed
    chunks.metadata.forget_chunk(DATASET_ID, dead)
    assert chunks.snapshot().digest == base.digest
    chunks.apply([Put(b"c", 300, size=5)])
    assert chunks.since(base) == bytes(chunks.snapshot().content)


def test_a_chunk_that_is_applied_meanwhile_is_in_it(chunks: Chunks) -> None:
    base = chunks.snapshot()
    chunks.apply([Put(b"b", 300, size=5)])
    late = iter([[Put(b"c", 400, size=5)]])

    def header(dataset_id: bytes, identity: bytes) -> ChunkHeader:
        for puts in late:
            chunks.apply(puts)
        return chunks.headers[identity]

    assert chunks.since(base, header) == bytes(chunks.snapshot().content)
