"""A metadata store that has lost its newest writes: nothing that was acknowledged is missing from an answer."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, Unavailable
from dieselfs.records import EntryTable
from dieselfs_server.datasets.caught_up import caught_up
from dieselfs_server.datasets.commit import commit_chunk
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, encode
from tests.support.redis import RedisProcess, needs_redis, running_redis


def put(store: MemoryStore, metadata: MetadataStore, number: int, time_s: int = 1_700_000_000) -> None:
    name = chunk_id(number, time_s)
    data = encode([Put(b"file%d" % number, number, size=3)], name)
    commit_chunk(store, metadata, DATASET_ID, name, data, NOW_NS)


def files(metadata: MetadataStore) -> list[bytes]:
    return sorted(map(bytes, metadata.entry_table(DATASET_ID).names))


class Forgetful(SqliteMetadata):
    """In memory; loses the writes since `keep` at `lose`, as a Redis does that was killed."""

    number = 0

    def __init__(self) -> None:
        super().__init__(":memory:")
        self._kept = sqlite3.connect(":memory:")

    def keep(self) -> None:
        with self._connections.writing() as connection:
            connection.execute("COMMIT")
            connection.backup(self._kept)
            connection.execute("BEGIN")

    def lose(self, is_noticed: bool = True) -> None:
        with self._connections.writing() as connection:
            connection.execute("COMMIT")
            self._kept.backup(connection)
            connection.execute("BEGIN")
        self.number += is_noticed

    def lineage(self) -> int:
        return self.number

    def close(self) -> None:
        super().close()
        self._kept.close()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def forgetful() -> Iterator[Forgetful]:
    with closing(Forgetful()) as metadata:
        metadata.create_dataset(DATASET, DATASET_ID)
        yield metadata


def guarded(store: MemoryStore, metadata: MetadataStore) -> MetadataStore:
    return caught_up(store, metadata, lambda: NOW_NS)


READS: dict[str, Callable[[MetadataStore], object]] = {
    "dataset": lambda metadata: metadata.dataset(DATASET).files,
    "datasets": lambda metadata: [each.files for each in metadata.datasets()],
    "usage": lambda metadata: [each and each.record.files for each in metadata.usage([DATASET, "other"])],
    "lookup": lambda metadata: metadata.lookup(DATASET_ID, b"file2"),
    "list_folder": lambda metadata: len(metadata.list_folder(DATASET_ID, b"", b"", 10)),
    "entry_table": files,
    "chunks": lambda metadata: len(metadata.chunks(DATASET_ID)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_first_answer_after_a_restart_counts_every_chunk(
    store: MemoryStore, forgetful: Forgetful, read: Callable[[MetadataStore], object]
) -> None:
    metadata = guarded(store, forgetful)
    put(store, metadata, 1)
    forgetful.keep()
    put(store, metadata, 2)
    put(store, metadata, 3, time_s=1_600_000_000)  # of a writer whose clock is years behind
    expected = read(metadata)
    forgetful.lose()
    assert read(metadata) == expected
    put(store, metadata, 4)
    assert files(metadata) == [b"file1", b"file2", b"file3", b"file4"]


@pytest.mark.parametrize("name", ["dataset", "datasets", "usage"])
def test_a_generation_that_goes_back_is_noticed(store: MemoryStore, forgetful: Forgetful, name: str) -> None:
    metadata, read = guarded(store, forgetful), READS[name]
    forgetful.keep()
    put(store, metadata, 1)
    expected = read(metadata)
    forgetful.lose(is_noticed=False)
    assert read(metadata) == expected
    assert files(metadata) == [b"file1"]


class LosingWhileRead(Forgetful):
    def entry_table(self, dataset_id: bytes) -> EntryTable:
        if not self.number:
            self.lose()
        return super().entry_table(dataset_id)


def test_a_call_during_which_writes_are_lost_is_made_again(store: MemoryStore) -> None:
    with closing(LosingWhileRead()) as losing:
        metadata = guarded(store, losing)
        metadata.create_dataset(DATASET, DATASET_ID)
        put(store, metadata, 1)
        losing.keep()
        put(store, metadata, 2)
        assert files(metadata) == [b"file1", b"file2"]


def test_a_rebuild_during_which_writes_are_lost_is_not_put_in_place(
    store: MemoryStore, forgetful: Forgetful
) -> None:
    metadata = guarded(store, forgetful)
    put(store, metadata, 1)
    copy_id = metadata.begin_rebuild(DATASET_ID)
    forgetful.keep()
    forgetful.lose()
    with pytest.raises(Unavailable, match="run it again"):
        metadata.finish_rebuild(DATASET_ID, copy_id, NOW_NS)
    assert files(metadata) == [b"file1"]


class FailingStore(MemoryStore):
    """Its listings fail with `failures`, one after the other."""

    failures: Sequence[Exception] = ()

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        if self.failures:
            failure, *self.failures = self.failures
            raise failure
        return super().list_chunks(dataset_id, since_s)


def test_a_store_that_is_away_is_not_taken_for_caught_up(forgetful: Forgetful) -> None:
    store = FailingStore()
    metadata = guarded(store, forgetful)
    forgetful.keep()
    put(store, metadata, 1)
    forgetful.lose()
    store.failures = [Unavailable("away"), Unavailable("away"), Damaged("a bucket has lost changes")]
    with pytest.raises(Unavailable, match="away"):
        metadata.dataset(DATASET)
    assert [each.files for each in metadata.datasets()] == [0]
    metadata.dataset(DATASET)  # damaged: the calls that meet the damage say so


def test_a_restored_database_file_is_opened_and_caught_up(store: MemoryStore, tmp_path: Path) -> None:
    path, old = tmp_path / "metadata.db", tmp_path / "old.db"
    with closing(SqliteMetadata(path)) as sqlite:
        metadata = guarded(store, sqlite)
        metadata.create_dataset(DATASET, DATASET_ID)
        put(store, metadata, 1)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(old)) as copy:
            source.backup(copy)
        put(store, metadata, 2)
        shutil.move(old, path)
        assert metadata.dataset(DATASET).files == 2
        assert files(metadata) == [b"file1", b"file2"]
        put(store, metadata, 3)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with closing(SqliteMetadata(path)) as again:
        assert again.lineage() == 0 and files(again) == [b"file1", b"file2", b"file3"]


def killed_after_losing(process: RedisProcess, size: int) -> None:
    process.kill()
    (log,) = process.folder.glob("appendonlydir/*.incr.aof")
    with log.open("r+b") as file:
        file.truncate(size)
    process.start()


@needs_redis
def test_redis_comes_back_without_its_newest_writes(store: MemoryStore, tmp_path: Path) -> None:
    with (
        running_redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as process,
        closing(RedisMetadata.open(f"redis://127.0.0.1:{process.port}/0")) as redis,
    ):
        metadata = guarded(store, redis)
        metadata.create_dataset(DATASET, DATASET_ID)
        put(store, metadata, 1)
        (log,) = process.folder.glob("appendonlydir/*.incr.aof")
        size = log.stat().st_size
        for number in (2, 3):
            put(store, metadata, number)
        generation = metadata.dataset(DATASET).generation
        killed_after_losing(process, size)
        assert files(metadata) == [b"file1", b"file2", b"file3"]
        assert metadata.dataset(DATASET).generation == generation
        assert redis.lineage() == 1
