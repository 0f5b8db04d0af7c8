"""What becomes of a node of a job, over real mounts: its name is taken by another machine, its daemon dies."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs_client.cluster.membership import JOB_RETRY_S_MAX
from dieselfs_client.daemon import control
from dieselfs_client.supervision.status import supervision_of
from lab.namespace import wait_for
from tests.support.job_mounts import job_mounts, stats_of
from tests.support.server import RunningServer, running_server
from tests.support.small_chunks import CHUNKS, FILES, content, store

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

DATASET = "nodes"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), DATASET, must_exist=False) as data:
            store(data, tmp_path_factory.mktemp("files"))
        yield server


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """For the mounts of two machines."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir(mode=0o700)
    return folders


def read_all(place: Path) -> None:
    for number in range(FILES):
        assert (place / str(number)).read_bytes() == content(number)


def daemon_of(place: Path) -> int:
    supervision = supervision_of(str(place))
    assert supervision is not None
    return supervision.daemon


def out(place: Path) -> str:
    """Why its node is out of the job."""
    why: str = stats_of(place)["membership"]["out"]
    return why


def test_a_machine_whose_name_was_taken_reads_on_and_comes_back_when_it_is_free(
    server: RunningServer, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders[0]))
    with job_mounts(server, DATASET, folders[0], ["node-0"]) as (place,):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders[1]))
        with job_mounts(server, DATASET, folders[1], ["node-0"]) as (other,):
            wait_for(lambda: "node node-0 of the job has a new master" in out(place), "it finds out")
            read_all(place)
            assert out(other) == ""
        wait_for(lambda: out(place) == "", "it is back", 2 * JOB_RETRY_S_MAX)
        read_all(place)
        log = Path(f"{place}.log").read_text()
        assert "this node is out, and will retry" in log and "this node is back" in log


def end_daemon(place: Path, number: signal.Signals) -> None:
    """Send a signal that it dies of; returns when there is another."""
    daemon = daemon_of(place)
    os.kill(daemon, number)
    wait_for(lambda: daemon_of(place) not in (0, daemon), "there is another")


def test_what_a_node_has_in_memory_outlives_its_daemons(
    server: RunningServer, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders[0]))
    with job_mounts(server, DATASET, folders[0], ["node-0"]) as (place,):
        read_all(place)
        assert stats_of(place)["node_cache"]["fetched_chunks"] == CHUNKS
        end_daemon(place, signal.SIGSEGV)
        crashed = stats_of(place)
        control.upgrade(place)
        for stats in (crashed, stats_of(place)):
            assert stats["job"]["is_master"] and stats["job"]["warmth"] == 1
            cache = stats["node_cache"]
            assert (cache["inherited_chunks"], cache["fetched_chunks"]) == (CHUNKS, 0)
        with job_mounts(server, DATASET, folders[1], ["node-0"]) as (attached,):
            read_all(attached)
            assert stats_of(attached)["requested"]["from_node"] > 0
        assert stats_of(place)["node_cache"]["fetched_chunks"] == 0
        end_daemon(place, signal.SIGKILL)
        assert stats_of(place)["node_cache"]["inherited_chunks"] == 0, "whoever kills it may need the memory"
