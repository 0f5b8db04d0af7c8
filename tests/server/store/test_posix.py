"""The store in a folder keeps the contract; cut short, it leaves what durability.md says and nothing else."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import AlreadyExists, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs_server.store.posix import TEMPORARY_AGE_MAX_S, PosixStore
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, ChunkStoreSuite, chunk_at
from tests.support import put_chunk
from tests.support.put_chunk import CONTENT, EXIT_EXISTS, EXIT_FAILED
from tests.support.strace import KILL, KILLED, count_calls, needs_strace, run_with_fault

PROGRAM = "tests.support.put_chunk"
CHANGING_CALLS = ("mkdir(at)?", "writev", "fsync", "link(at)?", "unlink(at)?", "write")
"""Every call of a put that changes something; the last one is the program's "stored"."""


class TestPosixStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> PosixStore:
        return PosixStore(folder / "store")


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def aside(root: Path) -> list[str]:
    return [name for name in files_in(root) if "/tmp/" in name]


def get(store: PosixStore) -> bytes | None:
    try:
        return store.get_range(DATASET_ID, CHUNK_ID, 0, store.size(DATASET_ID, CHUNK_ID))
    except NotFound:
        return None


def test_a_chunk_lies_where_its_id_says(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "deep" / "store")
    store.put(DATASET_ID, CHUNK_ID, [b"x"])
    store.put_record("users", b"x")
    name = chunk_name(CHUNK_ID)
    expected = [f"{DATASET_ID.hex()}/{name[:3]}/{name[3:5]}/{name}", "records/users"]
    assert files_in(tmp_path / "deep" / "store") == expected


def test_four_seconds_share_a_folder(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    for time_s in range(1_700_000_000, 1_700_000_008):
        store.put(DATASET_ID, chunk_at(time_s), [b"x"])
    assert len({os.path.dirname(name) for name in files_in(tmp_path)}) == 2


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_may_look(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = PosixStore(tmp_path / "deep" / "store")
        store.put(DATASET_ID, CHUNK_ID, [b"x"])
        store.put_record("users", b"x")
    finally:
        os.umask(before)
    for path in (tmp_path / "deep").rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    store = PosixStore(tmp_path / "store")
    store.put(DATASET_ID, chunk_at(0x65000102), [b"x"])  # makes the folder
    name = chunk_name(CHUNK_ID)
    path = tmp_path / "store" / DATASET_ID.hex() / name[:3] / name[3:5] / name
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(Unavailable, match=name):
        store.get_range(DATASET_ID, CHUNK_ID, 0, 6)
    with pytest.raises(AlreadyExists):
        store.put(DATASET_ID, CHUNK_ID, [b"x"])
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_what_others_put_there_is_no_chunk(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.put(DATASET_ID, CHUNK_ID, [b"x"])
    name = chunk_name(CHUNK_ID)
    folder = tmp_path / DATASET_ID.hex()
    for stray in ("README", "abc", f"{name[:3]}/x", f"{name[:3]}/xy", f"{name[:3]}/{name[3:5]}/~{name}"):
        (folder / stray).write_bytes(b"")
    wrong_place = folder / name[:3] / "00"
    wrong_place.mkdir()
    (wrong_place / name).write_bytes(b"")
    (tmp_path / ("g" * 32)).mkdir()
    assert list(store.list_chunks(DATASET_ID)) == [CHUNK_ID]
    assert list(store.list_datasets()) == [DATASET_ID]


@pytest.mark.parametrize("name", ["", "..", "a/b", "Users", "users\n", ".users.1"])
def test_a_record_has_a_harmless_name(tmp_path: Path, name: str) -> None:
    store = PosixStore(tmp_path)
    with pytest.raises(InvalidInput):
        store.put_record(name, b"x")
    with pytest.raises(InvalidInput):
        store.get_record(name)


@pytest.mark.parametrize("dataset_id", [b"", b"../../../../etc/", b"x" * 17])
def test_an_id_has_its_length(tmp_path: Path, dataset_id: bytes) -> None:
    store = PosixStore(tmp_path)
    if len(dataset_id) == 16:
        store.put(dataset_id, CHUNK_ID, [b"x"])
        assert files_in(tmp_path)[0].startswith(dataset_id.hex())
    else:
        with pytest.raises(InvalidInput):
            store.put(dataset_id, CHUNK_ID, [b"x"])
    with pytest.raises(InvalidInput):
        store.put(DATASET_ID, CHUNK_ID[:15], [b"x"])


def test_a_root_that_cannot_be_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="file"):
        PosixStore(tmp_path / "file" / "store")


def test_folders_removed_by_another_process_are_made_again(tmp_path: Path) -> None:
    store, other = PosixStore(tmp_path), PosixStore(tmp_path)
    store.put(DATASET_ID, CHUNK_ID, [b"x"])
    other.delete_dataset(DATASET_ID)
    store.put(DATASET_ID, CHUNK_ID, [b"y"])
    assert other.get_range(DATASET_ID, CHUNK_ID, 0, 1) == b"y"


@needs_strace
def test_a_put_killed_anywhere_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Each call of a put in turn is not reached any more; then another process starts, and the put is repeated."""
    states: set[tuple[bool, int]] = set()
    for calls in CHANGING_CALLS:
        for when in range(1, 20):
            root = tmp_path / f"{calls} {when}"
            done = run_with_fault(PROGRAM, [str(root)], calls, KILL, when, expected_codes=(0, KILLED))
            if done.returncode == 0:
                break
            states.add(check_what_a_killed_put_left(root))
        assert when > 1, f"the put never called {calls}"
    # durability.md: nothing yet; written aside; has its name, perhaps not for good; stored, but nobody was told.
    assert states == {(False, 0), (False, 1), (True, 1), (True, 0)}


def check_what_a_killed_put_left(root: Path) -> tuple[bool, int]:
    """Returns whether the chunk is there, and how many files are left aside."""
    store = PosixStore(root)
    found = get(store)
    left = aside(root)
    assert found in (None, CONTENT)
    assert list(store.list_chunks(DATASET_ID)) == ([] if found is None else [CHUNK_ID])
    if found is None:
        store.put(DATASET_ID, CHUNK_ID, [CONTENT])
    else:
        with pytest.raises(AlreadyExists):
            store.put(DATASET_ID, CHUNK_ID, [CONTENT])
    assert get(store) == CONTENT
    late = PosixStore(root, clock=lambda: os.stat(root).st_mtime + 2 * TEMPORARY_AGE_MAX_S)
    assert aside(root) == []
    assert get(late) == CONTENT
    return found is not None, len(left)


@needs_strace
@pytest.mark.parametrize("calls", ["fsync", "writev", "link(at)?", "mkdir(at)?"])
def test_a_failed_step_is_an_error_and_leaves_nothing(tmp_path: Path, calls: str) -> None:
    codes = []
    for when in range(1, 20):
        root = tmp_path / str(when)
        done = run_with_fault(PROGRAM, [str(root)], calls, "error=EIO", when, expected_codes=(0, EXIT_FAILED))
        codes.append(done.returncode)
        store = PosixStore(root)
        if done.returncode == 0:
            assert get(store) == CONTENT
            break
        assert "Input/output error" in done.stdout and str(root) in done.stdout
        assert get(store) is None
        assert files_in(root) == []
        store.put(DATASET_ID, CHUNK_ID, [CONTENT])
    assert codes[0] == EXIT_FAILED and codes[-1] == 0


@needs_strace
@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("calls", ["fsync", "writev", "link(at)?"])
def test_a_full_disk_is_told_from_other_failures(tmp_path: Path, error: str, calls: str) -> None:
    done = run_with_fault(PROGRAM, [str(tmp_path)], calls, f"error={error}", 1, expected_codes=(EXIT_FAILED,))
    assert "No space left" in done.stdout or "quota" in done.stdout
    assert files_in(tmp_path) == []


@needs_strace
@pytest.mark.parametrize("error", ["EPERM", "EOPNOTSUPP"])
def test_without_hard_links_a_put_is_still_exclusive(tmp_path: Path, error: str) -> None:
    run_with_fault(PROGRAM, [str(tmp_path)], "link(at)?", f"error={error}", 1)
    assert get(PosixStore(tmp_path)) == CONTENT
    assert len(files_in(tmp_path)) == 1
    run_with_fault(PROGRAM, [str(tmp_path)], "link(at)?", f"error={error}", 1, expected_codes=(EXIT_EXISTS,))
    assert len(files_in(tmp_path)) == 1


@needs_strace
def test_a_folder_is_made_durable_once(tmp_path: Path) -> None:
    counts = [
        count_calls(PROGRAM, [str(tmp_path / str(chunks)), str(chunks)], "fsync", tmp_path / "log")
        for chunks in (1, 4)
    ]
    folders = len(["root", "dataset", "tmp", "hours", "seconds"])
    assert counts == [
        folders + 2,
        folders + 4 * 2,
    ]  # for each chunk its file, and the folder that holds its name


@needs_strace
def test_a_name_that_may_not_be_durable_is_made_so_at_the_next_start(tmp_path: Path) -> None:
    """While the file aside is there, nobody knows whether its writer came as far as the fsync of the folder."""
    root = str(tmp_path / "root")
    run_with_fault(PROGRAM, [root], "fsync", KILL, 7, expected_codes=(KILLED,))
    assert len(aside(tmp_path)) == 1 and get(PosixStore(root)) == CONTENT
    folders_above_and_its_own = 4
    assert count_calls(PROGRAM, [root, "0"], "fsync", tmp_path / "log") == folders_above_and_its_own
    os.unlink(tmp_path / aside(tmp_path)[0])
    assert count_calls(PROGRAM, [root, "0"], "fsync", tmp_path / "log") == 0


def test_files_of_dead_writers_go_when_they_are_old(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.put(DATASET_ID, CHUNK_ID, [b"x"])
    store.put_record("users", b"x")
    left = [
        tmp_path / DATASET_ID.hex() / "tmp" / f"{chunk_name(chunk_at(5))}.0123",
        tmp_path / DATASET_ID.hex() / "tmp" / "of no chunk",
        tmp_path / "records" / ".users.0123",
    ]
    for path in left:
        path.write_bytes(b"part of it")
        os.utime(path, (1000.0, 1000.0))
    PosixStore(tmp_path, clock=lambda: 1000.0 + TEMPORARY_AGE_MAX_S - 1)
    assert all(path.exists() for path in left)
    PosixStore(tmp_path, clock=lambda: 1000.0 + TEMPORARY_AGE_MAX_S + 1)
    assert not any(path.exists() for path in left)
    assert len(files_in(tmp_path)) == 2


def test_a_dataset_half_removed_is_removed_at_the_next_start(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.put(DATASET_ID, CHUNK_ID, [b"x"])
    (tmp_path / DATASET_ID.hex()).rename(tmp_path / f"dropped.{DATASET_ID.hex()}.0123")
    assert list(store.list_datasets()) == []
    PosixStore(tmp_path)
    assert files_in(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount is not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_what_was_stored(small_disk: Path) -> None:
    store = PosixStore(small_disk / "store")
    content = bytes(1 << 20)
    stored = 0
    with pytest.raises(StorageFull, match=r"store.*No space left"):
        for stored in range(10):
            store.put(DATASET_ID, chunk_at(stored), [content])
    assert 0 < stored < 5
    assert list(store.list_chunks(DATASET_ID)) == [chunk_at(number) for number in range(stored)]
    assert len(files_in(small_disk)) == stored
    with pytest.raises(StorageFull):
        store.put_record("users", bytes(2 << 20))
    assert store.get_record("users") is None
    store.delete(DATASET_ID, chunk_at(0))
    store.put(DATASET_ID, chunk_at(9), [content])


def test_the_program_of_these_tests_runs(tmp_path: Path) -> None:
    assert put_chunk.main(str(tmp_path)) == 0
    assert put_chunk.main(str(tmp_path)) == EXIT_EXISTS
    assert sys.modules[PROGRAM] is put_chunk
