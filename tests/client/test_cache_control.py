"""A node's daemon without a mount, as programs see it: the unchanged process, found by the library by itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists, InvalidInput, NotFound
from dieselfs.limits import MIB
from dieselfs_client import cache_control
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


def test_one_daemon_is_enough(server: RunningServer, data: Dataset) -> None:
    cache_control.start("shared", 64 * MIB, server=server.unix)
    with pytest.raises(AlreadyExists):
        cache_control.start("shared", 64 * MIB, server=server.unix)
    assert data.get("7") == content(7)


def test_what_goes_wrong_is_told_where_it_was_asked(server: RunningServer, data: Dataset) -> None:
    with pytest.raises(NotFound, match="other"):
        cache_control.start("other", 64 * MIB, server=server.unix)
    with pytest.raises(InvalidInput, match="the machine's memory"):
        cache_control.start("shared", 1 << 50, server=server.unix)
    with pytest.raises(NotFound, match="no daemon shares shared"):
        cache_control.stop(data.snapshot)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
