"""A metadata store that has lost its newest writes: nothing that was acknowledged is missing from an answer."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import Damaged, Unavailable
from dieselfs.process.state_dirs import locked
from dieselfs.records import EntryTable, NoteChange
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.caught_up import ERROR_PAUSE_S, WAITING_MAX, catch_up_next, caught_up
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


@needs_redis
def test_a_part_of_the_metadata_that_is_missing_is_logged_at_the_start(
    store: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        running_redis(tmp_path) as process,
        closing(RedisMetadata.open(f"redis://127.0.0.1:{process.port}/0")) as redis,
        process.client() as client,
    ):
        redis.create_dataset(DATASET, DATASET_ID)
        put(store, redis, 1)
        for key in client.scan_iter("*.*}:changes"):
            client.unlink(key)  # as a node of a cluster that has lost its newest writes
        metadata = caught_up(store, redis, lambda: NOW_NS, is_starting=True)
        while catch_up_next(metadata) is not None:
            pass
        assert "is missing" in caplog.text and f"dlcmd rebuild dl://{DATASET}" in caplog.text


# -- the start of a server ---------------------------------------------------------------------------------------------

OTHER, OTHER_ID = "ants", bytes(16)


class Ticking(SqliteMetadata):
    """In memory; each chunk takes a second to apply, by `clock`."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.now_s = 0.0
        self.applied: list[bytes] = []

    def clock(self) -> float:
        return self.now_s

    def apply(self, dataset_id: bytes, *arguments: Any, **options: Any) -> int:
        self.now_s += 1.0
        self.applied.append(dataset_id)
        return super().apply(dataset_id, *arguments, **options)


@pytest.fixture
def ticking(store: MemoryStore) -> Iterator[Ticking]:
    """A killed server left 20 chunks of one dataset, and one of another, that are not applied."""
    with closing(Ticking()) as metadata:
        metadata.create_dataset(DATASET, DATASET_ID)
        metadata.create_dataset(OTHER, OTHER_ID)
        for number in range(20):
            name = chunk_id(number, 1_700_000_000 + number)
            store.put(DATASET_ID, name, [encode([Put(b"file%02d" % number, 1, size=3)], name)])
        name = chunk_id(99)
        store.put(OTHER_ID, name, [encode([Put(b"ant", 1, size=3)], name, OTHER_ID)])
        yield metadata


def starting(store: MemoryStore, metadata: Ticking) -> MetadataStore:
    return caught_up(store, metadata, lambda: NOW_NS, is_starting=True, clock=metadata.clock)


def test_a_starting_server_serves_other_datasets_while_one_has_many_chunks_left(
    store: MemoryStore, ticking: Ticking
) -> None:
    metadata = starting(store, ticking)
    assert ticking.applied == []
    assert metadata.lookup(OTHER_ID, b"ant") is not None and ticking.applied == [OTHER_ID]
    with pytest.raises(Unavailable, match="its chunks are being applied again; try again later"):
        metadata.dataset(DATASET)
    assert ticking.now_s == 1 + 5, "a call takes as long as it may wait"
    assert [each.files for each in metadata.datasets()] == [1, 5]  # the list does not wait
    assert [each and each.record.files for each in metadata.usage([DATASET])] == [5]
    while metadata_refuses(metadata):
        pass
    assert metadata.dataset(DATASET).files == 20 and ticking.now_s == 21
    assert catch_up_next(metadata) is None


def test_notes_do_not_wait_for_the_chunks_that_are_left(store: MemoryStore, ticking: Ticking) -> None:
    """The list of lost datasets, which reads notes of all, is for all users."""
    metadata = starting(store, ticking)
    assert metadata.change_notes(DATASET_ID, [NoteChange("name", None, b"1")])
    assert metadata.notes(DATASET_ID, ["name"]) == [b"1"]
    assert metadata.notes_below(DATASET_ID, "") == {"name": b"1"}
    assert Catalog(store, metadata).lost_datasets() == []
    assert ticking.applied == []


def metadata_refuses(metadata: MetadataStore) -> bool:
    try:
        metadata.entry_table(DATASET_ID)
    except Unavailable:
        return True
    return False


def test_the_rest_is_applied_in_turns(store: MemoryStore, ticking: Ticking) -> None:
    metadata = starting(store, ticking)
    assert catch_up_next(metadata) == 0.0
    assert catch_up_next(metadata) == 0.0
    assert ticking.applied == [OTHER_ID, DATASET_ID], "one chunk of each dataset in a turn, not all of one"
    while catch_up_next(metadata) is not None:
        pass
    assert len(ticking.applied) == 21 and files(metadata)[-1] == b"file19"


def test_one_process_of_a_server_at_a_time_applies_what_a_dataset_has_left(
    store: MemoryStore, ticking: Ticking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs_server.datasets.caught_up.TURN_S", 0.0)
    metadata = caught_up(store, ticking, lambda: NOW_NS, True, ticking.clock, tmp_path)
    with locked(tmp_path / f"{DATASET_ID.hex()}.lock"):  # as another process does
        for _ in range(4):
            assert catch_up_next(metadata) == 0.0
        assert ticking.applied == [OTHER_ID]
    while catch_up_next(metadata) is not None:
        pass
    assert metadata.dataset(DATASET).files == 20
    assert not [*tmp_path.iterdir()]


def test_a_chunk_that_another_server_stores_meanwhile_hides_none(
    store: MemoryStore, ticking: Ticking
) -> None:
    metadata = starting(store, ticking)
    for _ in range(2):
        catch_up_next(metadata)
    later = chunk_id(77, 1_700_000_000 + 24 * 3600)
    data = encode([Put(b"later", 1, size=3)], later)
    commit_chunk(store, ticking, DATASET_ID, later, data, NOW_NS)  # as another server does
    while catch_up_next(metadata) is not None:
        pass
    assert metadata.dataset(DATASET).files == 21


def test_more_calls_than_may_wait_are_refused_at_once(store: MemoryStore, ticking: Ticking) -> None:
    """So a dataset that takes long leaves threads for all others."""
    metadata = starting(store, ticking)
    with ExitStack() as stack:
        for _ in range(WAITING_MAX):
            stack.enter_context(metadata._waiting)  # type: ignore[attr-defined]  # what a waiting call holds
        with pytest.raises(Unavailable):
            metadata.dataset(DATASET)
        assert ticking.applied == []


def test_a_dataset_that_fails_to_catch_up_is_tried_again_and_one_that_is_dropped_is_not(
    store: MemoryStore, ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = starting(store, ticking)
    with monkeypatch.context() as patch:

        def away(*_: object) -> Iterator[bytes]:
            raise Unavailable("away")

        patch.setattr(store, "list_chunks", away)
        assert catch_up_next(metadata) == ERROR_PAUSE_S
        with pytest.raises(Unavailable, match="away"):
            metadata.dataset(DATASET)
    ticking.drop_dataset(OTHER_ID)
    while catch_up_next(metadata) is not None:
        pass
    assert metadata.dataset(DATASET).files == 20
