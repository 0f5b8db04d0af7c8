"""SQLite keeps the contract of metadata stores, in a file and in memory; and what only a file can get wrong."""

import errno
import multiprocessing
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Event

import pytest

from dieselfs.chunk.format import Op
from dieselfs.errors import (
    AlreadyExists,
    Damaged,
    DieselfsError,
    InvalidInput,
    NotFound,
    StorageFull,
    Unavailable,
)
from dieselfs_server.metadata.sqlite import store as store_module
from dieselfs_server.metadata.sqlite import table as table_module
from dieselfs_server.metadata.sqlite.connections import Connections
from dieselfs_server.metadata.sqlite.schema import DATASET_TABLES, SCHEMA_VERSION
from dieselfs_server.metadata.sqlite.store import SqliteMetadata, remove_rows
from tests.conformance.metadata_suite import MetadataSuite, check_against_model
from tests.support.apply_chunks import CHUNKS, IDS
from tests.support.metadata_chunks import (
    DATASET,
    DATASET_ID,
    NOW_NS,
    Put,
    apply,
    apply_to_copy,
    chunk_id,
    delete,
    list_all,
    pack,
)
from tests.support.strace import KILL, KILLED, needs_strace, run_with_fault

PROGRAM = "tests.support.apply_chunks"
HEADERS = {identity: pack(puts, identity)[1] for puts, identity in zip(CHUNKS, IDS, strict=True)}


class TestSqliteFile(MetadataSuite):
    def make_store(self, folder: Path) -> SqliteMetadata:
        return SqliteMetadata(folder / "metadata.db")


class TestSqliteSmallBlocks(MetadataSuite):
    """Entries are read two at a time; in memory."""

    @pytest.fixture(autouse=True)
    def small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_module, "_BLOCK_ENTRIES", 2)

    def make_store(self, folder: Path) -> SqliteMetadata:
        return SqliteMetadata(":memory:")


def check_is_prefix(path: Path, at_least: int) -> int:
    """Assert that the first chunks are applied, wholly, and that the rest can follow; returns how many were."""
    with closing(SqliteMetadata(path)) as store:
        try:
            store.create_dataset(DATASET, DATASET_ID)
        except AlreadyExists:
            applied = [identity for identity in IDS if store.has_chunk(DATASET_ID, identity)]
        else:
            applied = []
        assert applied == IDS[: len(applied)] and len(applied) >= at_least
        check_against_model(store, {identity: HEADERS[identity] for identity in applied})
        for puts, identity in zip(CHUNKS, IDS, strict=True):
            apply(store, puts, identity)
        check_against_model(store, HEADERS)
    return len(applied)


@needs_strace
@pytest.mark.parametrize("calls", ["pwrite64", "fdatasync|fsync", "ftruncate"])
def test_a_chunk_whose_applying_is_killed_counts_wholly_or_not_at_all(tmp_path: Path, calls: str) -> None:
    counts = set()
    killed = 0
    for when in [*range(1, 20), *range(20, 400, 17)]:
        path = tmp_path / f"{when}.db"
        done = run_with_fault(PROGRAM, [str(path)], calls, KILL, when, expected_codes=(0, KILLED))
        counts.add(check_is_prefix(path, at_least=len(done.stdout.splitlines())))
        if done.returncode == 0:
            break
        killed += 1
    assert killed >= 1
    if calls == "pwrite64":
        assert counts == {0, 1, 2, 3, 4}, "the run proves too little"


def test_a_log_that_lost_its_end_leaves_a_prefix(tmp_path: Path) -> None:
    """As a power cut leaves it: commits are not fsynced one by one, so the newest may be gone, or torn."""
    path = tmp_path / "metadata.db"
    with closing(SqliteMetadata(path)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        for puts, identity in zip(CHUNKS, IDS, strict=True):
            apply(store, puts, identity)
        log_bytes = os.path.getsize(f"{path}-wal")
        counts = []
        for kept_bytes in range(0, log_bytes + 1, 2000):
            cut = tmp_path / f"{kept_bytes}.db"
            shutil.copy(path, cut)
            shutil.copy(f"{path}-wal", f"{cut}-wal")
            os.truncate(f"{cut}-wal", kept_bytes)
            counts.append(check_is_prefix(cut, at_least=0))
    assert counts == sorted(counts)
    assert set(counts) >= {0, 1, 2, 3}


def test_what_was_reserved_and_applied_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with closing(SqliteMetadata(path)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        assert store.reserve_versions(DATASET_ID, 1000, NOW_NS) == NOW_NS
        apply(store, CHUNKS[0], IDS[0])
    with closing(SqliteMetadata(path)) as store:
        assert store.reserve_versions(DATASET_ID, 1, 5) == NOW_NS + 1000
        check_against_model(store, {IDS[0]: HEADERS[IDS[0]]})


def test_only_its_owner_may_look(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(SqliteMetadata(tmp_path / "metadata.db")) as store:
            store.create_dataset(DATASET, DATASET_ID)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("metadata.db", "metadata.db-shm", "metadata.db-wal"), 384)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(Unavailable, match=r"metadata\.db"):
        SqliteMetadata(tmp_path / "metadata.db")
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"nowhere/metadata\.db: No such file"):
        SqliteMetadata(tmp_path / "nowhere" / "metadata.db")


_FEW_FILES = """
import os, resource, sys
from dieselfs.errors import Unavailable
from dieselfs_server.metadata.sqlite.store import SqliteMetadata

descriptor = os.open("/", os.O_PATH)
os.close(descriptor)
for spare in range(6):
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor + spare, 1024))
    try:
        SqliteMetadata(sys.argv[1]).close()
        print("opened")
    except Unavailable as error:
        print(error)
"""


def test_a_low_limit_of_open_files_is_named(tmp_path: Path) -> None:
    """SQLite itself says "unable to open database file"."""
    arguments = [sys.executable, "-c", _FEW_FILES, str(tmp_path / "m.db")]
    lines = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
    fault = f"metadata database {tmp_path / 'm.db'}: {os.strerror(errno.EMFILE)}"
    assert {*lines} == {fault, "opened"} and lines[0] == fault and lines[-1] == "opened"


@pytest.mark.parametrize("content", [b"not a database, and long enough to be seen as such" * 100, b"x" * 50])
def test_a_file_of_another_kind_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"is damaged .*rebuilt from the chunks"):
        SqliteMetadata(path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE contacts (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="another program"):
        SqliteMetadata(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [(SCHEMA_VERSION + 1, InvalidInput, f"newer than {SCHEMA_VERSION}"), (0, Damaged, "unknown schema 0")],
)
def test_an_unknown_schema_is_one_clear_error(
    tmp_path: Path, version: int, error: type[DieselfsError], message: str
) -> None:
    path = tmp_path / "metadata.db"
    SqliteMetadata(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(error, match=message):
        SqliteMetadata(path)


def test_damage_inside_is_an_error_not_a_wrong_answer(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with closing(SqliteMetadata(path)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, [Put(b"d/f%d" % i, 1 + i) for i in range(2000)], chunk_id(1))
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(4096 * 15, size, 4096):
            file.seek(page)
            file.write(b"\xff" * 64)
    with closing(SqliteMetadata(path)) as store, pytest.raises(Damaged, match="rebuilt from the chunks"):
        store.entry_table(DATASET_ID)


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with closing(SqliteMetadata(path)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        with store._connections.writing() as connection:  # no disk is small enough to fill it in a test
            connection.execute("COMMIT")
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 3}")
            connection.execute("BEGIN")
        with pytest.raises(StorageFull, match=r"metadata\.db"):
            apply(store, [Put(b"d/f%d" % i, 1 + i) for i in range(2000)], chunk_id(1))
        check_against_model(store, {})
        apply(store, [Put(b"a", 1)], chunk_id(2))


def test_readers_do_not_wait_for_the_writer_and_see_one_state(tmp_path: Path) -> None:
    connections = Connections(str(tmp_path / "metadata.db"))
    with closing(connections), ThreadPoolExecutor(1) as threads:
        insert = "INSERT INTO dataset (name, dataset_id) VALUES (?, ?)"
        count = "SELECT count(*) FROM dataset"
        with connections.reading() as reader:
            assert reader.execute(count).fetchone() == (0,)
            with connections.writing() as writer:
                writer.execute(insert, ("a", b"a"))
                with connections.reading() as second:
                    assert second.execute(count).fetchone() == (0,)
            assert reader.execute(count).fetchone() == (0,)
        with connections.reading() as reader:
            assert reader.execute(count).fetchone() == (1,)
        may_end = Event()

        def read_for_long() -> None:
            with connections.reading() as slow:
                slow.execute(count).fetchone()
                assert may_end.wait(60)

        reading = threads.submit(read_for_long)
        with connections.writing() as writer:
            writer.execute(insert, ("b", b"b"))
        may_end.set()
        reading.result()


def test_a_transaction_that_raises_is_undone(tmp_path: Path) -> None:
    connections = Connections(str(tmp_path / "metadata.db"))
    with closing(connections):
        with pytest.raises(NotFound), connections.writing() as writer:
            writer.execute("INSERT INTO dataset (name, dataset_id) VALUES ('a', x'00')")
            raise NotFound("something")
        with connections.reading() as reader:
            assert reader.execute("SELECT count(*) FROM dataset").fetchone() == (0,)


def open_and_close(barrier: Barrier, paths: list[Path]) -> None:
    for path in paths:
        barrier.wait(60)
        SqliteMetadata(path).close()


def test_processes_that_start_together_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The moment at which a database changes to its log is short, so there are many."""
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(4)
    paths = [tmp_path / f"{number}.db" for number in range(100)]
    processes = [fork.Process(target=open_and_close, args=(barrier, paths)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4


def test_processes_share_a_database(tmp_path: Path) -> None:
    """All start at once on a database that is not there yet, and apply the same chunks."""
    path = tmp_path / "metadata.db"
    command = [sys.executable, "-m", PROGRAM, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    programs = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(6)]
    errors = [program.communicate(timeout=60)[1] for program in programs]
    assert [program.returncode for program in programs] == [0] * len(programs), errors
    assert check_is_prefix(path, at_least=len(CHUNKS)) == len(CHUNKS)


def columns_of(path: Path) -> dict[str, list[str]]:
    """The columns of each table; of triggers, the tables."""
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT type || ' ' || name, tbl_name FROM sqlite_schema").fetchall()
        return {
            kind: [column[1] for column in connection.execute(f"PRAGMA table_info({table})")]
            for kind, table in made
        }


def test_a_database_of_before_is_upgraded(tmp_path: Path) -> None:
    """One that was made before there were counts: `tests/samples/README.md`."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript((Path(__file__).parents[3] / "samples" / "sqlite-3.sql").read_text())
    for _ in range(2):  # the second time it is a present one
        SqliteMetadata(old).close()
    chunks = [
        [
            *(Put(path, 1, Op.DIRECTORY) for path in (b"", b"empty")),
            *(Put(path, 1, size=size) for path, size in ((b"d/a", 9), (b"d/e/b", 5))),
            Put(b"l", 1, Op.SYMLINK, target=b"d/a"),
        ],
        [Put(b"d/a", 2, size=7), delete(b"gone", 2), Put(b"large", 3, size=8, length=4)],
    ]
    added = [Put(b"large", 3, size=8, place=4, length=4), Put(b"f/new", 4, size=3)]
    with closing(SqliteMetadata(new)) as expected, closing(SqliteMetadata(old)) as store:
        expected.create_dataset(DATASET, DATASET_ID)
        for number, puts in enumerate(chunks, 1):
            apply(expected, puts, chunk_id(number))
        assert store.usage([DATASET]) == expected.usage([DATASET])
        for each in store, expected:
            apply(each, added, chunk_id(3))
        assert store.usage([DATASET]) == expected.usage([DATASET])
        assert list_all(store, b"") == list_all(expected, b"")
    assert columns_of(old) == columns_of(new)


def rows(path: Path) -> list[str]:
    """The names of all rows of the table of datasets."""
    with closing(Connections(str(path))) as connections, connections.reading() as connection:
        return [name for (name,) in connection.execute("SELECT name FROM dataset ORDER BY number")]


def test_a_copy_that_a_crash_left_is_removed_by_the_next_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    for _ in range(2):
        with closing(SqliteMetadata(path)) as store:
            if not store.datasets():
                store.create_dataset(DATASET, DATASET_ID)
                apply(store, [Put(b"a", 1, size=3)], chunk_id(1))
            store.begin_rebuild(DATASET_ID)
    assert rows(path) == [DATASET, f"{DATASET}/copy"]
    with closing(SqliteMetadata(path)) as store:
        copy = store.begin_rebuild(DATASET_ID)
        apply_to_copy(store, copy, [Put(b"a", 1, size=3)], chunk_id(1))
        store.finish_rebuild(DATASET_ID, copy, NOW_NS)
        assert [dataset.name for dataset in store.datasets()] == [DATASET]
    assert rows(path) == [DATASET]


def test_names_that_begin_alike_do_not_mix(tmp_path: Path) -> None:
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as store:
        names = ["pet", "pets", "pets_", "p"]
        for number, name in enumerate(names):
            dataset_id = bytes([number]) * 16
            store.create_dataset(name, dataset_id)
            apply(store, [Put(b"in-" + name.encode(), 1)], chunk_id(number), dataset_id)
        for number in range(len(names)):
            store.finish_rebuild(bytes([number]) * 16, store.begin_rebuild(bytes([number]) * 16), NOW_NS)
            left = {dataset.name: dataset.files for dataset in store.datasets()}
            assert left == {name: int(other > number) for other, name in enumerate(names)}


def test_a_large_dataset_is_dropped_in_several_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that others can write meanwhile; it is gone with the first one, and a later drop removes what a crash left."""
    monkeypatch.setattr(store_module, "ROWS_AT_ONCE", 10)
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as store, monkeypatch.context() as patch:
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, [Put(b"d%d/e/f" % number, 1 + number) for number in range(95)], chunk_id(1))
        removals: list[int] = []

        def interrupted(connection: sqlite3.Connection, number: int) -> bool:
            removals.append(number)
            if len(removals) == 3:
                raise Unavailable("killed")
            return remove_rows(connection, number)

        patch.setattr(store_module, "remove_rows", interrupted)
        store.drop_dataset(DATASET_ID)
        assert store.datasets() == []
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, [Put(b"new", 1)], chunk_id(1))
        with store._connections.reading() as connection:
            assert connection.execute("SELECT count(*) FROM entry").fetchone() == (95 - 20 + 1,)
        store.drop_dataset(DATASET_ID)
        assert len(removals) > 3 + 75 // 10
        with store._connections.reading() as connection:
            for table in (*DATASET_TABLES, "dataset"):
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_of_chunks_that_take_long_one_at_a_time_is_before_a_small_one(tmp_path: Path) -> None:
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as store, ThreadPoolExecutor(4) as threads:
        store.create_dataset(DATASET, DATASET_ID)
        store.create_dataset("other", bytes(16))
        large = [[Put(b"%d/%0100d" % (chunk, number), 1) for number in range(200)] for chunk in range(4)]
        with store._large:  # as the first one of them has it
            waiting = [
                threads.submit(apply, store, puts, chunk_id(number)) for number, puts in enumerate(large, 1)
            ]
            apply(store, [Put(b"small", 1)], chunk_id(9), bytes(16))
            assert not any(each.done() for each in waiting)
        assert sorted(each.result(60) for each in waiting) == [1, 2, 3, 4]


def test_folders_of_many_depths_come_and_go_as_one_by_one(tmp_path: Path) -> None:
    """Their counts are changed in a few statements for each depth, whatever bytes their names have."""
    paths = [b"a/b/c", b"a/b/d", b"a/\xff,1/x/y", b"top", b"z/\x01/\xfe", b"a/b/c,d/e"]
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as store:
        store.create_dataset(DATASET, DATASET_ID)

        def folders() -> dict[tuple[bytes, bytes], int]:
            with store._connections.reading() as connection:
                rows = connection.execute("SELECT parent, name, members FROM folder").fetchall()
            return {(parent, name): members for parent, name, members in rows}

        apply(store, [Put(path, 1) for path in paths], chunk_id(1))
        assert folders() == {
            (b"", b"a"): 2,
            (b"a", b"b"): 3,
            (b"a/b", b"c,d"): 1,
            (b"a", b"\xff,1"): 1,
            (b"a/\xff,1", b"x"): 1,
            (b"", b"z"): 1,
            (b"z", b"\x01"): 1,
        }
        gone = [b"a/\xff,1/x/y", b"z/\x01/\xfe", b"a/b/c"]
        apply(store, [*(delete(path, 2) for path in gone), Put(b"z/new/f", 2)], chunk_id(2))
        assert folders() == {
            (b"", b"a"): 1,
            (b"a", b"b"): 2,
            (b"a/b", b"c,d"): 1,
            (b"", b"z"): 1,
            (b"z", b"new"): 1,
        }
