"""Processes of a user on the machine of a server read one copy of each chunk, whatever happens to server and files."""

import multiprocessing
import os
import re
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.rpc import connection as connection_module
from dieselfs.settings import Settings
from tests.support.server import RunningServer, running_server, start_server

CHUNKS, FILES_EACH, FILE_BYTES = 6, 8, MIB // 2
ANSWER_TIMEOUT_S = 120.0


def content(number: int) -> bytes:
    return number.to_bytes(4, "big") * (FILE_BYTES // 4)


PATHS = [f"{number:03}" for number in range(CHUNKS * FILES_EACH)]


def store_files(server: RunningServer) -> None:
    with Dataset(server.settings(), "data", must_exist=False) as data:
        for number, path in enumerate(PATHS):
            data.put(path, content(number))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path) as running:
        store_files(running)
        yield running


def check_all(data: Dataset) -> None:
    assert data.get_many(PATHS) == [content(number) for number in range(len(PATHS))]
    assert data.get(PATHS[-1]) == content(len(PATHS) - 1)


def read_all(data: Dataset) -> dict[str, Any]:
    check_all(data)
    return data.statistics()


def shared_chunks(data: Dataset) -> int:
    return int(data.statistics()["chunk_cache"]["shared_chunks"])


def filled(server: RunningServer) -> int:
    client = server.client()
    try:
        return int(client.status().metrics["shared.filled"])
    finally:
        client.close()


def chunk_files(server: RunningServer) -> list[Path]:
    return [
        path for path in (server.folder / "chunks").rglob("*") if path.is_file() and path.stat().st_size > MIB
    ]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_chunk_is_read_and_verified_once_for_all_processes(server: RunningServer, method: str) -> None:
    with Dataset(server.settings(), "data") as data:
        check_all(data)
        data.get(PATHS[0])
        with multiprocessing.get_context(method).Pool(2) as pool:
            figures = pool.map(read_all, [data] * 4, chunksize=1)
    assert filled(server) == CHUNKS
    for each in figures:
        assert each["chunk_cache"]["fetched_chunks"] == each["requested"]["from_servers"] == 0
        assert each["chunk_cache"]["extent_bytes"] == 0


def hold_all(settings: Settings, pipe: Connection) -> None:
    """Read all files, and keep them until told to end; send the memory that this process has of its chunks."""
    with Dataset(settings, "data") as data:
        check_all(data)
        pipe.send(None)
        pipe.recv()
        pipe.send(chunk_memory_bytes(os.getpid()))
        pipe.recv()


def chunk_memory_bytes(process: int) -> int:
    """Of a process: shared pages count in proportion (PSS)."""
    total, is_chunk = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_chunk = "dieselfs-chunk" in line
        elif is_chunk and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_several_processes_have_one_copy_in_memory(server: RunningServer) -> None:
    spawn = multiprocessing.get_context("spawn")
    running = []
    try:
        for _ in range(3):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=hold_all, args=(server.settings(), theirs), daemon=True)
            process.start()
            running.append((process, ours))
        sizes = []
        for _, pipe in running:
            assert pipe.poll(ANSWER_TIMEOUT_S)
            pipe.recv()
        for _, pipe in running:
            pipe.send(None)
            assert pipe.poll(ANSWER_TIMEOUT_S)
            sizes.append(pipe.recv())
        sizes.append(chunk_memory_bytes(server.process.pid))
    finally:
        for process, _ in running:
            process.kill()
            process.join()
    all_bytes = len(PATHS) * FILE_BYTES
    assert 0.9 * all_bytes < sum(sizes) <= 1.1 * all_bytes


def test_a_file_that_is_cut_off_or_removed_while_it_is_mapped_harms_nobody(server: RunningServer) -> None:
    with Dataset(server.settings(), "data") as data, Dataset(server.settings(), "data") as other:
        check_all(data)
        for number, path in enumerate(chunk_files(server)):
            os.truncate(path, 0) if number % 2 else path.unlink()
        check_all(data)
        assert other.snapshot.generation == data.generation
        check_all(other)
        assert shared_chunks(other) == CHUNKS


def test_a_purge_and_a_drop_leave_what_is_mapped(server: RunningServer) -> None:
    with Dataset(server.settings(), "data") as data, Dataset(server.settings(), "data") as writer:
        check_all(data)
        for path in PATHS[:-1]:
            writer.delete(path)
        writer.flush()
        writer.purge(grace_s=0)
        check_all(data)
        writer.delete_dataset()
        check_all(data)
        assert writer.client.status().metrics["shared.kept_bytes"] == 0


def test_a_server_that_is_killed_leaves_what_is_mapped(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    try:
        store_files(server)
        with Dataset(server.settings(), "data") as data:
            check_all(data)
            server.kill()
            check_all(data)
    finally:
        server.kill()


def test_without_shared_memory_the_bytes_are_the_same(tmp_path: Path) -> None:
    with running_server(tmp_path, ["--shared-memory", "0"]) as server:
        store_files(server)
        with Dataset(server.settings(), "data") as data:
            check_all(data)
            assert shared_chunks(data) == 0
        assert filled(server) == 0


def test_memory_of_another_users_server_is_not_used(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "peer_user", lambda connection: os.geteuid() + 1)
    monkeypatch.setattr(connection_module, "is_believed", lambda user, path: True)  # as root believes some
    with Dataset(server.settings(), "data") as data:
        check_all(data)
        assert shared_chunks(data) == 0 and filled(server) == 0


def test_over_tcp_nothing_is_shared(server: RunningServer) -> None:
    with Dataset(server.settings(server.user("reader", data="read")), "data") as data:
        check_all(data)
        assert shared_chunks(data) == 0 and filled(server) == 0


def test_damage_is_found_once_and_costs_only_what_is_damaged(server: RunningServer) -> None:
    path = chunk_files(server)[0]
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with Dataset(server.settings(), "data") as data:
        damaged = 0
        for number, name in enumerate(PATHS):
            try:
                assert data.get(name) == content(number)
            except Exception as error:
                assert type(error).__name__ == "Damaged"
                damaged += 1
        assert damaged == 1
