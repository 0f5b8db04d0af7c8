"""What is small and cannot be made again comes back from a copy: users, names, tags, the identity, the metadata."""

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_NOT_FOUND, InvalidInput, Unavailable
from dieselfs_server.maintenance.backup import COPIES_KEPT, back_up, put_back
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import keep_older_servers_out
from tests.support.server import RunningServer, running_server, start_server

NOW_S = 1_770_000_000.0
CHUNK = b"d" * 16, b"c" * 16, [b"chunk"]


def marked_store(store_id: str = "a") -> MemoryStore:
    store = MemoryStore()
    for name, content in (
        ("store", json.dumps({"format": 1, "id": store_id}).encode()),
        ("users-1", b"ada"),
        ("tag-1", b"v1"),
    ):
        store.put_record(name, content)
    return store


def records(store: MemoryStore) -> dict[str, bytes | None]:
    return {name: store.get_record(name) for name in store.list_records("")}


def test_only_what_is_missing_is_put_back(tmp_path: Path) -> None:
    store = marked_store()
    before = records(store)
    copy = back_up(store, None, tmp_path / "backups", NOW_S)
    assert copy.name == "2026-02-02T02:40:00Z" and copy.stat().st_mode & 0o077 == 0
    store.delete_record("tag-1")
    store.put_record("users-1", b"ada and bob")
    assert put_back(store, None, tmp_path / "backups") == 1
    assert records(store) == {**before, "users-1": b"ada and bob"}


def test_a_lost_marker_comes_back_but_only_where_chunks_are(tmp_path: Path) -> None:
    """An empty store may be a file system that is not mounted."""
    copy = back_up(marked_store(), None, tmp_path, NOW_S)
    lost = MemoryStore()
    with pytest.raises(Unavailable, match="mount its file system"):
        put_back(lost, None, copy)
    lost.put(*CHUNK)
    assert put_back(lost, None, copy) == 3
    with pytest.raises(InvalidInput, match="another object store"):
        put_back(marked_store("other"), None, copy)


def test_a_copy_from_before_the_first_reference_can_be_put_back(tmp_path: Path) -> None:
    store = marked_store()
    copy = back_up(store, None, tmp_path, NOW_S)
    keep_older_servers_out(store)
    store.delete_record("tag-1")
    assert put_back(store, None, copy) == 1
    assert b'"format": 3' in (store.get_record("store") or b"")


def test_the_newest_copies_stay_and_what_was_interrupted_goes(tmp_path: Path) -> None:
    (tmp_path / "2026-01-01T00:00:00Z.partial").mkdir()
    (tmp_path / "notes").write_text("of the administrator")
    (tmp_path / "film.partial").mkdir()
    made = [back_up(marked_store(), None, tmp_path, NOW_S + day * 86_400) for day in range(COPIES_KEPT + 2)]
    assert sorted(os.listdir(tmp_path)) == [*sorted(path.name for path in made[2:]), "film.partial", "notes"]


def test_two_copies_at_once_do_not_remove_each_other(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="another copy is being made"):
            back_up(marked_store(), None, tmp_path, NOW_S)
    finally:
        os.close(folder)
    back_up(marked_store(), None, tmp_path, NOW_S)


def test_what_a_lost_database_has_left_beside_it_is_not_applied(tmp_path: Path) -> None:
    database, store = tmp_path / "metadata.db", marked_store()
    with closing(sqlite3.connect(database)) as writer:
        writer.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        copy = back_up(store, database, tmp_path / "backups", NOW_S)
        writer.executescript("DROP TABLE t; CREATE TABLE other (x)")
        left = (tmp_path / "metadata.db-wal").read_bytes()
    database.unlink(missing_ok=True)
    (tmp_path / "metadata.db-wal").write_bytes(left)
    put_back(store, database, copy)
    with closing(sqlite3.connect(database)) as found:
        assert found.execute("SELECT x FROM t").fetchall() == [(1,)]
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def run(server: RunningServer, *words: str, exit_code: int = 0) -> str:
    stores = [
        "--store",
        f"posix://{server.folder}/chunks",
        "--metadata",
        f"sqlite://{server.folder}/metadata.db",
    ]
    command = [sys.executable, "-m", "dieselfs_server.main", *stores, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == exit_code, done.stderr
    return done.stdout + done.stderr


def test_a_server_continues_from_a_copy_that_was_made_while_it_ran(tmp_path: Path) -> None:
    backups = str(tmp_path / "backups")
    with running_server(tmp_path / "server") as server:
        key_file = server.user("ada", data="write")
        with Dataset(server.settings(), "data", must_exist=False) as data:
            data.put("a", b"content")
            data.flush()
        assert "copied to" in run(server, "--backup", backups)
    shutil.rmtree(server.folder / "chunks/records")
    for file in server.folder.glob("metadata.db*"):
        file.unlink()
    assert "restored" in run(server, "--restore", backups)
    with sqlite3.connect(server.folder / "metadata.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    again = start_server(server.folder, is_new=False)
    try:
        with Dataset(
            again.settings(key_file), "data", must_exist=False
        ) as data:  # the same user, the same pin
            assert data.get("a") == b"content"
    finally:
        again.stop()


def test_a_folder_without_copies_is_one_clear_line(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        pass
    message = run(server, "--restore", f"{tmp_path}/none", exit_code=EXIT_NOT_FOUND)
    assert message.startswith("dieselfs-server: ") and message.count("\n") == 1
