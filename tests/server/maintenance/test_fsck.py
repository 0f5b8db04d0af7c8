"""A check of chunks that cost much: it ends when its job ends, also inside of one chunk."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.limits import MIB
from dieselfs.rpc.records import FsckReport
from dieselfs_server.datasets.commit import commit_chunk
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.maintenance.fsck import fsck
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY

NOW_NS = 1_800_000_000 * 10**9
DATASET = bytes(range(16))
FILES, SHARED_BYTES = 300, MIB


class Ended(Exception):
    """The job of the check has ended."""


class World:
    """A chunk of an earlier version: its files have overlapping ranges of the same bytes, and one is deleted."""

    def __init__(self, metadata: SqliteMetadata, folder: Path) -> None:
        self.store, self.metadata, self.folder = MemoryStore(), metadata, folder
        metadata.create_dataset("data", DATASET)
        self.tags, ids = TagStore(self.store, IDENTITY), ChunkIdSource(lambda: NOW_NS // 10**9)
        payload, builder, deletion = bytes(SHARED_BYTES + FILES), ChunkBuilder(), ChunkBuilder()
        for number in range(FILES):
            content = memoryview(payload)[number : SHARED_BYTES + number]
            builder.add_file(b"%d" % number, content, 0o644, 0, offset=number)
        deletion.add_delete(b"0")
        for sealed, first in ((builder.seal(payload), 1), (deletion.seal(), FILES + 1)):
            chunk_id = ids.next()
            data = b"".join(sealed.encode(chunk_id, "data", DATASET, first))
            commit_chunk(self.store, metadata, DATASET, chunk_id, data, NOW_NS)

    def fsck(self, check: Callable[[], object]) -> FsckReport:
        snapshots = SnapshotCache(self.folder / "snapshots", self.metadata, IDENTITY)
        dataset, scratch = self.metadata.dataset("data"), self.folder / "scratch"
        named = self.store, self.metadata, snapshots, self.tags, dataset, scratch, NOW_NS
        return fsck(*named, is_deep=True, is_repair=False, proceed=Proceed(check))

    def purge(self, check: Callable[[], object]) -> None:
        dataset = self.metadata.dataset("data")
        purge(self.store, self.metadata, dataset, self.tags, NOW_NS, 0, False, proceed=Proceed(check))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(SqliteMetadata(":memory:")) as metadata:
        yield World(metadata, tmp_path)


def asked_until(last: int, asked: list[int]) -> Callable[[], None]:
    """A check that ends the job when it is asked for the `last` time."""

    def check() -> None:
        asked.append(1)
        if len(asked) == last:
            raise Ended

    return check


def test_a_deep_check_ends_within_a_chunk(world: World) -> None:
    asked: list[int] = []
    report = world.fsck(asked_until(-1, asked))
    assert report.problem_count == 0
    within = FILES * SHARED_BYTES // (64 * MIB)
    assert len(asked) >= 2 + within, "asked less often than every 64 MiB"
    with pytest.raises(Ended):
        world.fsck(asked_until(3, []))


def test_tables_that_are_equal_are_not_read_into_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteMetadata, "entry_table", lambda *_: pytest.fail("400 bytes for each entry"))
    report = world.fsck(lambda: None)
    assert (report.entries, report.problem_count) == (FILES - 1, 0)


def test_a_purge_ends_within_a_chunk(world: World) -> None:
    before = len(list(world.store.list_chunks(DATASET)))
    with pytest.raises(Ended):
        world.purge(asked_until(3, []))
    assert len(list(world.store.list_chunks(DATASET))) == before
    with pytest.raises(Ended):  # while it writes what one chunk becomes
        world.purge(asked_until(1 + FILES * SHARED_BYTES // (64 * MIB) + 2, []))
    assert before < len(list(world.store.list_chunks(DATASET))) < before + 10


def test_a_name_that_belongs_to_another_dataset_is_a_problem(world: World) -> None:
    names, other = DatasetNames(world.store), bytes(16)
    names.claim("data", other)
    (problem,) = world.fsck(lambda: None).problems
    assert (problem.kind, problem.is_mended) == ("name", False)
    assert problem.what.startswith(f"dataset data is {other.hex()} in the store") and problem.what.endswith(
        "dlcmd rebuild dl://data"
    )
    (record,) = world.store.list_records("dataset-")
    world.store.put_record(record, b"damaged")
    assert [each.kind for each in world.fsck(lambda: None).problems] == ["name"]
