"""A node's daemon without a mount, as programs see it: the unchanged process, found by the library by itself."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from dieselfs.cache.node_lock import NodeLock
from dieselfs.cache.node_socket import NodeClient, runtime_folder, socket_path
from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, NotFound
from dieselfs.limits import JOB_IDLE_POLL_S, JOB_IDLE_S, MIB
from dieselfs.rpc.connection import reachable_path
from dieselfs_client import cache_control
from dieselfs_client.cache_daemon import unused
from dieselfs_client.job.part import path_of
from dieselfs_client.job.pool import PoolTerms, terms_of
from dieselfs_client.job_options import JobOptions
from tests.support.server import RunningServer, running_server

FILES = 300
FILE_BYTES = 50_000
"""Four chunks."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "shared", is_created=False) as data:
            for number in range(FILES):
                data.put(f"{number}", content(number))
        yield server


def content(number: int) -> bytes:
    return bytes([number % 251]) * FILE_BYTES


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of its own: no daemon of another test is found, and its socket's path is short."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def data(server: RunningServer) -> Iterator[Dataset]:
    with Dataset(server.settings(), "shared") as data:
        try:
            yield data
        finally:
            if (process := cache_control.find(data.snapshot)) is not None:
                os.kill(process, signal.SIGKILL)


def read_all(data: Dataset) -> None:
    for number in range(FILES):
        assert data.get(f"{number}") == content(number)


def test_programs_read_from_the_memory_of_the_daemon(server: RunningServer, data: Dataset) -> None:
    process = cache_control.start("shared", 64 * MIB, "oneshot", server=server.unix)
    assert cache_control.find(data.snapshot) == process
    read_all(data)
    statistics = data.statistics()
    assert statistics.shared_chunks >= 3 and statistics.fetched_chunks == 0
    code = f"""
import dieselfs
from tests.client.test_cache_control import read_all
with dieselfs.connect("shared", server={server.unix!r}) as data:
    read_all(data)
    assert data.statistics().fetched_chunks == 0, data.statistics()
"""
    subprocess.run([sys.executable, "-c", code], env=_environment(), check=True, timeout=100)
    assert cache_control.stop(data.snapshot) == process
    assert cache_control.find(data.snapshot) is None


def test_a_daemon_that_dies_costs_nobody_anything(server: RunningServer, data: Dataset) -> None:
    process = cache_control.start("shared", 64 * MIB, server=server.unix)
    assert data.get("0") == content(0)
    os.kill(process, signal.SIGKILL)
    read_all(data)
    while cache_control.find(data.snapshot) is not None:
        pass
    again = cache_control.start("shared", 64 * MIB, server=server.unix)
    assert again == cache_control.find(data.snapshot) != process


def test_what_is_less_than_the_dataset_still_serves(server: RunningServer, data: Dataset) -> None:
    cache_control.start("shared", 8 * MIB, "oneshot", server=server.unix)
    for _ in range(2):
        read_all(data)


def test_one_that_lets_nobody_in_is_not_waited_for(data: Dataset) -> None:
    """It is stopped, say, and many programs have come meanwhile."""
    path = socket_path(runtime_folder(), "shared", data.snapshot.digest)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as full, ExitStack() as stack:
        name = stack.enter_context(reachable_path(str(path)))
        full.bind(name)
        full.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                waiting.setblocking(False)
                waiting.connect(name)
        assert cache_control.find(data.snapshot) is None


def test_one_daemon_is_enough(server: RunningServer, data: Dataset) -> None:
    cache_control.start("shared", 64 * MIB, server=server.unix)
    with pytest.raises(AlreadyExists):
        cache_control.start("shared", 64 * MIB, server=server.unix)
    assert data.get("7") == content(7)


@pytest.fixture
def job(data: Dataset, tmp_path: Path) -> Iterator[tuple[JobOptions, PoolTerms]]:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    options = JobOptions("train", 1, "node-0", 3, "127.0.0.1", str(secret))
    terms = terms_of(options, data.client, "shared", 0, {})
    yield options, terms
    if (process := cache_control.find(data.snapshot, terms)) is not None:
        os.kill(process, signal.SIGKILL)


def test_a_daemon_of_a_job_serves_that_job_alone(
    server: RunningServer, data: Dataset, job: tuple[JobOptions, PoolTerms]
) -> None:
    options, terms = job
    process = cache_control.start("shared", 64 * MIB, "oneshot", server=server.unix, job=options)
    assert cache_control.find(data.snapshot, terms) == process
    assert cache_control.find(data.snapshot) is None
    with pytest.raises(AlreadyExists, match="job train on this node"):
        cache_control.start("shared", 64 * MIB, server=server.unix, job=options)
    read_all(data)
    assert data.statistics().shared_chunks == 0, "these reads are of no job"
    node = NodeClient(path_of(data.snapshot, terms), data.snapshot.digest)
    told = node.members()
    assert told is not None and told.members is not None
    assert [(member.node, member.rank) for member in told.members] == [("node-0", 3)]
    chunk_bytes = data.snapshot.chunk_payload_length(0)
    memory = node.memory(0, chunk_bytes, chunk_bytes)
    assert memory is not None and data.chunks.is_payload(0, memoryview(memory))  # type: ignore[arg-type]  # a buffer
    node.close()
    assert cache_control.stop(data.snapshot, terms) == process
    assert cache_control.find(data.snapshot, terms) is None
    with pytest.raises(NotFound, match="is in job train"):
        cache_control.stop(data.snapshot, terms)


def test_a_daemon_that_waits_for_other_nodes_can_be_stopped(
    server: RunningServer, data: Dataset, job: tuple[JobOptions, PoolTerms]
) -> None:
    options, terms = job
    with ThreadPoolExecutor(1) as threads:
        alone = replace(options, job_nodes=2)
        starting = threads.submit(cache_control.start, "shared", 64 * MIB, server=server.unix, job=alone)
        while cache_control.find(data.snapshot, terms) is None:
            assert not starting.done()
        cache_control.stop(data.snapshot, terms)
        with pytest.raises(DieselfsError):
            starting.result()


async def test_a_daemon_is_unused_when_no_program_of_the_job_has_been_there_for_a_while(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with closing(NodeLock(tmp_path / "run" / "job")) as ours, trio.fail_after(10 * JOB_IDLE_S) as limit:
        with closing(NodeLock(tmp_path / "run" / "job")) as program:
            program.be_user(7)
            with trio.move_on_after(5 * JOB_IDLE_S) as waiting:
                await unused(ours)
            assert waiting.cancelled_caught
        since_s = trio.current_time()
        await unused(ours)
        assert JOB_IDLE_S <= trio.current_time() - since_s <= JOB_IDLE_S + JOB_IDLE_POLL_S
        assert not limit.cancelled_caught


def test_what_goes_wrong_is_told_where_it_was_asked(server: RunningServer, data: Dataset) -> None:
    with pytest.raises(NotFound, match="other"):
        cache_control.start("other", 64 * MIB, server=server.unix)
    with pytest.raises(InvalidInput, match="the machine's memory"):
        cache_control.start("shared", 1 << 50, server=server.unix)
    with pytest.raises(NotFound, match="no daemon shares shared"):
        cache_control.stop(data.snapshot)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
