"""The order of a commit, and what a server finds after a crash between its steps."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs.limits import CHUNK_AHEAD_S_MAX
from dieselfs_server.datasets.commit import (
    LATE_S,
    VERSION_AHEAD_NS_MAX,
    commit_chunk,
    late_record,
    read_header,
    versions_ahead,
)
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.maintenance.rebuild import rebuild
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.interface import Buffer
from dieselfs_server.store.memory import MemoryStore
from tests.support.catch_up import catch_up
from tests.support.server import start_server

NOW_NS = 1_800_000_000 * 10**9
DATASET = bytes(range(16))
IDS = ChunkIdSource(clock=lambda: 1_800_000_000, first_counter=1)


def chunk(content: bytes, version: int = 5, chunk_id: bytes | None = None) -> tuple[bytes, bytes]:
    builder = ChunkBuilder()
    builder.add_file(b"file", content, 0o644, 0)
    chunk_id = chunk_id or IDS.next()
    return chunk_id, b"".join(builder.seal().encode(chunk_id, "data", DATASET, version))


@pytest.fixture
def metadata() -> Iterator[SqliteMetadata]:
    with closing(SqliteMetadata(":memory:")) as store:
        store.create_dataset("data", DATASET)
        yield store


class FullStore(MemoryStore):
    """Has no room."""

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        raise StorageFull("no room")


class FailingMetadata(SqliteMetadata):
    """Fails to apply, as a server that is killed just then would."""

    def apply(self, *arguments: object) -> int:
        raise Unavailable("killed")


def test_a_chunk_is_stored_before_it_counts(metadata: SqliteMetadata) -> None:
    chunk_id, data = chunk(b"content")
    with pytest.raises(StorageFull):
        commit_chunk(FullStore(), metadata, DATASET, chunk_id, data, NOW_NS)
    assert metadata.lookup(DATASET, b"file") is None and not metadata.has_chunk(DATASET, chunk_id)


def test_a_chunk_that_is_stored_but_not_applied_counts_after_the_next_start(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    chunk_id, data = chunk(b"content")
    with closing(FailingMetadata(":memory:")) as failing:
        failing.create_dataset("data", DATASET)
        with pytest.raises(Unavailable):
            commit_chunk(store, failing, DATASET, chunk_id, data, NOW_NS)
    assert catch_up(store, metadata, NOW_NS) == 1
    record = metadata.lookup(DATASET, b"file")
    assert record is not None and record.size == 7
    assert catch_up(store, metadata, NOW_NS) == 0


def test_a_chunk_of_a_clock_that_is_far_behind_counts_after_the_next_start(metadata: SqliteMetadata) -> None:
    store, now_s = MemoryStore(), NOW_NS // 10**9
    newest_id = (now_s + CHUNK_AHEAD_S_MAX).to_bytes(4, "big") + bytes(12)
    commit_chunk(store, metadata, DATASET, *chunk(b"newest", chunk_id=newest_id), NOW_NS)
    for number, behind_s in enumerate((LATE_S, LATE_S + 1, 100 * LATE_S)):
        chunk_id = (now_s - behind_s).to_bytes(4, "big") + bytes(12)
        with closing(FailingMetadata(":memory:")) as failing:
            failing.create_dataset("data", DATASET)
            with pytest.raises(Unavailable):
                commit_chunk(store, failing, DATASET, *chunk(b"late", chunk_id=chunk_id), NOW_NS)
        assert (store.get_record(late_record(DATASET)) is not None) == (number > 0)
        assert catch_up(store, metadata, NOW_NS) == 1
        assert metadata.has_chunk(DATASET, chunk_id)


def test_a_chunk_of_a_clock_that_was_ahead_hides_none_from_the_next_start(metadata: SqliteMetadata) -> None:
    """A purge makes chunks that are ahead while the clock of its server is."""
    store, now_s = MemoryStore(), NOW_NS // 10**9
    ahead_id = (now_s + 90_000).to_bytes(4, "big") + bytes(12)
    commit_chunk(store, metadata, DATASET, *chunk(b"ahead", chunk_id=ahead_id), NOW_NS)
    chunk_id, data = chunk(b"content", chunk_id=now_s.to_bytes(4, "big") + bytes(12))
    store.put(DATASET, chunk_id, [data])
    assert catch_up(store, metadata, NOW_NS) == 1
    assert metadata.has_chunk(DATASET, chunk_id)


def test_a_damaged_chunk_does_not_keep_the_server_from_starting(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    for content in (b"one", b"two", b"three"):
        chunk_id, data = chunk(content)
        broken = bytearray(data)
        broken[100] ^= content == b"two"
        store.put(DATASET, chunk_id, [broken])
    assert catch_up(store, metadata, NOW_NS) == 2


def test_a_chunk_that_the_store_gives_damaged_once_is_not_left_out(metadata: SqliteMetadata) -> None:
    class WrongOnce(MemoryStore):
        is_wrong = True

        def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
            found = super().get_range(dataset_id, chunk_id, offset, length)
            is_wrong, self.is_wrong = self.is_wrong, False
            return found if not is_wrong else bytes(len(found))

    store = WrongOnce()
    chunk_id, data = chunk(b"content")
    store.put(DATASET, chunk_id, [data])
    assert catch_up(store, metadata, NOW_NS) == 1


def test_sending_again_is_the_same_and_another_chunk_of_this_id_is_refused(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    chunk_id, data = chunk(b"content")
    assert commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS) == 1
    assert commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS) == 1
    _, other = chunk(b"other content", chunk_id=chunk_id)
    with pytest.raises(AlreadyExists):
        commit_chunk(store, metadata, DATASET, chunk_id, other, NOW_NS)


def test_a_valid_chunk_in_anothers_place_is_damage(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    chunk_id, data = chunk(b"content")
    store.put(DATASET, bytes(16), [data])
    with pytest.raises(Damaged, match=r"offset 24: this is chunk \S+, not chunk"):
        read_header(store, DATASET, bytes(16))
    store.put(bytes(16), chunk_id, [data])
    with pytest.raises(Damaged, match="belongs to dataset"):
        read_header(store, bytes(16), chunk_id)


def test_versions_from_the_far_future_would_win_for_ever_and_are_refused(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    chunk_id, data = chunk(b"content", version=NOW_NS + VERSION_AHEAD_NS_MAX + 1)
    with pytest.raises(InvalidInput, match="not reserved"):
        commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS)
    assert list(store.list_chunks(DATASET)) == []


def test_a_chunk_that_names_another_dataset_is_refused(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    chunk_id, data = chunk(b"content")
    with pytest.raises(InvalidInput, match="names dataset 'data', but it is uploaded to 'mine'"):
        commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS, "mine")
    assert list(store.list_chunks(DATASET)) == []
    assert commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS, "data") == 1


def test_a_chunk_of_the_future_is_refused(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    now_s = NOW_NS // 10**9
    for ahead_s in (CHUNK_AHEAD_S_MAX + 1, 1 << 31):
        chunk_id = (now_s + ahead_s).to_bytes(4, "big") + bytes(12)
        _, data = chunk(b"content", chunk_id=chunk_id)
        with pytest.raises(InvalidInput, match=f"made {ahead_s} s in the future, limit 900 s; set the clock"):
            commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS, "data")
    chunk_id = (now_s + CHUNK_AHEAD_S_MAX).to_bytes(4, "big") + bytes(12)
    assert commit_chunk(store, metadata, DATASET, *chunk(b"x", chunk_id=chunk_id), NOW_NS, "data") == 1


def test_a_starting_server_makes_the_records_of_names(metadata: SqliteMetadata) -> None:
    store = MemoryStore()
    catch_up(store, metadata, NOW_NS)
    assert DatasetNames(store).all() == {"data": DATASET}


KILL_POINTS = [
    ("fsync", 1),
    ("fsync", 2),
    ("link,linkat", 1),
    ("unlink,unlinkat", 1),
    ("pwrite64", 1),
    ("pwrite64", 4),
    ("sendto", 3),  # among them the waking of the event loop by worker threads
]


@pytest.mark.parametrize(("calls", "number"), KILL_POINTS)
def test_a_server_killed_at_any_step_of_a_commit_loses_nothing_that_it_acknowledged(
    tmp_path: Path, calls: str, number: int
) -> None:
    """The unchanged program under strace, killed at its N-th call; then started again."""
    folder = tmp_path / "server"
    first = start_server(folder)
    client = first.client()
    dataset = client.create_dataset("data")
    ids = ChunkIdSource()

    def put(name: bytes) -> int:
        builder = ChunkBuilder()
        builder.add_file(name, name * 1000, 0o644, 0)
        chunk_id = ids.next()
        version = client.reserve_versions("data", 1)
        return client.put_chunk(
            "data", chunk_id, builder.seal().encode(chunk_id, "data", dataset.dataset_id, version)
        )

    put(b"acknowledged")
    with open(tmp_path / "strace.log", "w") as log:
        tracer = subprocess.Popen(
            [
                *("strace", "-f", "-p", str(first.process.pid), "-o", str(tmp_path / "trace"), "-qq"),
                *("-e", f"trace={calls}", "-e", f"inject={calls}:signal=SIGKILL:when={number}"),
            ],
            stderr=log,
        )
    _wait_until_traced(first.process.pid)
    acknowledged = False
    try:
        put(b"under way")
        acknowledged = True
    except Unavailable:
        pass
    finally:
        first.kill()
        tracer.wait(20)
    assert not acknowledged, "the server was not killed: this run proves nothing"
    second = start_server(folder)
    try:
        again = second.client()
        names = {entry.name for entry in again.list_folder("data", b"", b"", 10)}
        assert b"acknowledged" in names
        assert names <= {b"acknowledged", b"under way"}
        for name in names:
            content = bytes(again._value("read_file", dataset="data", path=name))
            assert content == name * 1000
        again.close()
        client.close()
    finally:
        assert second.stop() == 0


def _wait_until_traced(process_id: int) -> None:
    """strace has attached to every thread once all of them name a tracer."""
    while True:
        statuses = [(task / "status").read_text() for task in Path(f"/proc/{process_id}/task").iterdir()]
        if all("TracerPid:\t0\n" not in status for status in statuses):
            return
        os.sched_yield()


def test_strace_is_there_and_kills(tmp_path: Path) -> None:
    """Or the tests above prove nothing."""
    done = subprocess.run(
        [
            "strace",
            "-o",
            str(tmp_path / "trace"),
            "-e",
            "inject=write:signal=SIGKILL:when=1",
            "echo",
            "hello",
        ],
        capture_output=True,
        check=False,
    )
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL) and b"hello" not in done.stdout


def test_versions_that_a_wrong_clock_has_reserved_are_accepted_and_named(metadata: SqliteMetadata) -> None:
    store, wrong_ns = MemoryStore(), NOW_NS + 30 * 24 * 3600 * 10**9
    metadata.reserve_versions(DATASET, 1, wrong_ns)
    version = metadata.reserve_versions(DATASET, 1, NOW_NS)
    assert version > wrong_ns
    chunk_id, data = chunk(b"content", version)
    commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS)
    dataset = metadata.dataset("data")
    assert "720 h ahead" in str(versions_ahead(metadata, dataset, NOW_NS))
    assert versions_ahead(metadata, dataset, wrong_ns) is None
    rebuild(store, metadata, "data", DATASET, NOW_NS)
    chunk_id, data = chunk(b"more", metadata.reserve_versions(DATASET, 1, NOW_NS))
    commit_chunk(store, metadata, DATASET, chunk_id, data, NOW_NS)
    with pytest.raises(InvalidInput, match="not reserved here"):
        commit_chunk(store, metadata, DATASET, *chunk(b"x", metadata.last_version(DATASET) + 1), NOW_NS)


def test_a_chunk_stays_if_the_metadata_is_lost_and_goes_if_the_dataset_was_dropped() -> None:
    store = MemoryStore()
    with closing(SqliteMetadata(":memory:")) as empty:
        names = DatasetNames(store)
        names.claim("data", DATASET)
        chunk_id, data = chunk(b"content")
        with pytest.raises(Unavailable, match="dlcmd rebuild dl://data"):
            commit_chunk(store, empty, DATASET, chunk_id, data, NOW_NS)
        assert list(store.list_chunks(DATASET)) == [chunk_id]
        names.release("data", DATASET)
        chunk_id, data = chunk(b"other")
        with pytest.raises(NotFound):
            commit_chunk(store, empty, DATASET, chunk_id, data, NOW_NS)
        assert chunk_id not in list(store.list_chunks(DATASET))
