"""A node's daemon without a mount, as programs see it: the unchanged process, found by the library by itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from dieselfs.cluster.node_client import NodeClient
from dieselfs.cluster.node_lock import NodeLock
from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, NotFound
from dieselfs.limits import MIB
from dieselfs.process.launch import wait_for_end
from dieselfs.process.state_dirs import runtime_folder
from dieselfs.settings.table import CacheOptions
from dieselfs.sources.interface import Slices
from dieselfs.sources.server import is_intact
from dieselfs_client.cache_daemon import JOB_IDLE_POLL_S, JOB_IDLE_S, unused
from dieselfs_client.cluster.node_paths import path_of
from dieselfs_client.cluster.pool import PoolConfig, pool_config
from dieselfs_client.daemon import cache_daemons
from tests.support.server import RunningServer, running_server

FILES = 300
FILE_BYTES = 50_000
"""Four chunks."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), ["--shared-memory", "0"]) as server:
        with Dataset(server.settings(), "shared", must_exist=False) as data:
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
            if (process := cache_daemons.find_cache(data.snapshot)) is not None:
                os.kill(process, signal.SIGKILL)


@pytest.fixture
def job(server: RunningServer, data: Dataset, tmp_path: Path) -> Iterator[tuple[CacheOptions, PoolConfig]]:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    options = CacheOptions(
        "train", 1, "node-0", 3, "127.0.0.1", str(secret), server.unix, memory_bytes=64 * MIB
    )
    terms = pool_config(options, data.client, "shared", {})
    yield options, terms
    if (process := cache_daemons.find_cache(data.snapshot, terms)) is not None:
        os.kill(process, signal.SIGKILL)


def read_all(data: Dataset) -> None:
    for number in range(FILES):
        assert data.get(f"{number}") == content(number)


def test_programs_read_from_the_memory_of_the_daemon(server: RunningServer, data: Dataset) -> None:
    process = cache_daemons.start_cache(
        "shared", CacheOptions(memory_bytes=64 * MIB, policy="oneshot", server=server.unix)
    )
    assert cache_daemons.find_cache(data.snapshot) == process
    read_all(data)
    statistics = data.statistics()
    assert (
        statistics["chunk_cache"]["shared_chunks"] >= 3 and statistics["chunk_cache"]["fetched_chunks"] == 0
    )
    code = f"""
import dieselfs
from tests.client.test_cache_daemon import read_all
with dieselfs.connect("shared", server={server.unix!r}) as data:
    read_all(data)
    assert data.statistics()["chunk_cache"]["fetched_chunks"] == 0, data.statistics()
"""
    subprocess.run([sys.executable, "-c", code], env=_environment(), check=True, timeout=100)
    assert cache_daemons.stop_cache(data.snapshot) == process
    assert cache_daemons.find_cache(data.snapshot) is None


def test_a_daemon_that_dies_costs_nobody_anything(server: RunningServer, data: Dataset) -> None:
    process = cache_daemons.start_cache("shared", CacheOptions(memory_bytes=64 * MIB, server=server.unix))
    assert data.get("0") == content(0)
    os.kill(process, signal.SIGKILL)
    read_all(data)
    while cache_daemons.find_cache(data.snapshot) is not None:
        pass
    again = cache_daemons.start_cache("shared", CacheOptions(memory_bytes=64 * MIB, server=server.unix))
    assert again == cache_daemons.find_cache(data.snapshot) != process


def test_what_is_less_than_the_dataset_still_serves(server: RunningServer, data: Dataset) -> None:
    cache_daemons.start_cache(
        "shared", CacheOptions(memory_bytes=8 * MIB, policy="oneshot", server=server.unix)
    )
    for _ in range(2):
        read_all(data)
    assert data.statistics()["chunk_cache"]["shared_chunks"] > 0, "what fits comes from the daemon"


def test_one_that_hangs_is_found_and_killed(server: RunningServer, data: Dataset) -> None:
    process = cache_daemons.start_cache("shared", CacheOptions(memory_bytes=64 * MIB, server=server.unix))
    os.kill(process, signal.SIGSTOP)
    assert cache_daemons.find_cache(data.snapshot) == process
    assert cache_daemons.stop_cache(data.snapshot, timeout_s=0.1) == process
    assert cache_daemons.find_cache(data.snapshot) is None
    again = cache_daemons.start_cache("shared", CacheOptions(memory_bytes=64 * MIB, server=server.unix))
    assert cache_daemons.stop_cache(data.snapshot) == again
    left = [path for path in runtime_folder().rglob("*") if not path.is_dir()]
    assert left == [], "one that ends leaves nothing behind, and removes what a killed one left"


def test_a_daemon_whose_start_is_interrupted_ends(
    data: Dataset, job: tuple[CacheOptions, PoolConfig]
) -> None:
    """It waits for another node, and blocks no later start."""
    options, terms = job
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may have been started with it ignored
from dieselfs_client.daemon import cache_daemons
from dieselfs.settings.table import CacheOptions
cache_daemons.start_cache("shared", {replace(options, job_nodes=2)!r})
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, env=_environment()
    ) as program:
        while (process := cache_daemons.find_cache(data.snapshot, terms)) is None:
            assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert wait_for_end(process, 60.0)
        assert program.wait(60.0) != 0
    assert cache_daemons.find_cache(data.snapshot, terms) is None


def test_one_daemon_is_enough(server: RunningServer, data: Dataset) -> None:
    cache_daemons.start_cache("shared", CacheOptions(memory_bytes=64 * MIB, server=server.unix))
    with pytest.raises(AlreadyExists):
        cache_daemons.start_cache("shared", CacheOptions(memory_bytes=64 * MIB, server=server.unix))
    assert data.get("7") == content(7)


def test_a_daemon_of_a_job_serves_that_job_alone(
    server: RunningServer, data: Dataset, job: tuple[CacheOptions, PoolConfig]
) -> None:
    options, terms = job
    process = cache_daemons.start_cache("shared", replace(options, policy="oneshot"))
    assert cache_daemons.find_cache(data.snapshot, terms) == process
    assert cache_daemons.find_cache(data.snapshot) is None
    with pytest.raises(AlreadyExists, match="job train on this node"):
        cache_daemons.start_cache("shared", options)
    read_all(data)
    assert data.statistics()["chunk_cache"]["shared_chunks"] == 0, "these reads are of no job"
    node = NodeClient(path_of(data.snapshot, terms), data.snapshot.digest)
    told = node.members()
    assert told is not None and told.members is not None
    assert [(member.node, member.rank) for member in told.members] == [("node-0", 3)]
    chunk_bytes = data.snapshot.chunk_payload_length(0)
    memory = node.memory(0, chunk_bytes, chunk_bytes)
    assert memory is not None
    payload = memoryview(np.frombuffer(memory, np.uint8))  # type: ignore[call-overload]  # a buffer
    assert is_intact(data.snapshot, 0, Slices.of_payload(payload))
    node.close()
    assert cache_daemons.stop_cache(data.snapshot, terms) == process
    assert cache_daemons.find_cache(data.snapshot, terms) is None
    with pytest.raises(NotFound, match="is in job train"):
        cache_daemons.stop_cache(data.snapshot, terms)


def test_a_daemon_that_waits_for_other_nodes_can_be_stopped(
    server: RunningServer, data: Dataset, job: tuple[CacheOptions, PoolConfig]
) -> None:
    options, terms = job
    with ThreadPoolExecutor(1) as threads:
        alone = replace(options, job_nodes=2)
        starting = threads.submit(cache_daemons.start_cache, "shared", alone)
        while cache_daemons.find_cache(data.snapshot, terms) is None:
            assert not starting.done()
        cache_daemons.stop_cache(data.snapshot, terms)
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
        cache_daemons.start_cache("other", CacheOptions(memory_bytes=64 * MIB, server=server.unix))
    with pytest.raises(InvalidInput, match="the machine's memory"):
        cache_daemons.start_cache("shared", CacheOptions(memory_bytes=1 << 50, server=server.unix))
    with pytest.raises(NotFound, match="no daemon shares shared"):
        cache_daemons.stop_cache(data.snapshot)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
