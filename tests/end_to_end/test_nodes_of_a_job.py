"""What becomes of a node of a job, over real mounts: its name is taken by another machine, its daemon dies."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from lab.namespace import wait_for
from tests.support.job_mounts import job_mounts, stats_of
from tests.support.server import RunningServer, running_server
from tests.support.small_chunks import FILES, content, store

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

DATASET = "nodes"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), DATASET, is_created=False) as data:
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


def out(place: Path) -> str:
    """Why its node is out of the job."""
    why: str = stats_of(place)["job"]["membership"]["out"]
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
        wait_for(lambda: out(place) == "", "it is back")
        read_all(place)
        log = Path(f"{place}.log").read_text()
        assert "this node is out, and tries to come back" in log and "this node is back" in log
