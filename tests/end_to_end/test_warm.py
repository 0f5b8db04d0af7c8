"""`dlcmd warm` over real mounts: of one node, and of the nodes of a job."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from dieselfs.limits import MIB
from dieselfs.settings.table import AUTO, FUSE
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of
from lab.namespace import wait_for
from lab.network import clear
from tests.support.dlcmd import Dlcmd
from tests.support.job_mounts import job_mounts, loads, stats_of
from tests.support.server import RunningServer, running_server
from tests.support.small_chunks import CHUNKS, FILE_BYTES, FILES, content, store

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

PATIENCE = "100s"
SLOW_BYTES = FILE_BYTES // 10
"""A second: the next chunk comes after 40 s."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "warmed", must_exist=False) as data:
            store(data, tmp_path_factory.mktemp("files"))
        yield server


@pytest.fixture
def dlcmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dlcmd:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "nodes").mkdir()
    return Dlcmd(tmp_path / "home", tmp_path)


@pytest.fixture
def place(dlcmd: Dlcmd) -> Iterator[Path]:
    folder = dlcmd.folder / "mount"
    folder.mkdir()
    yield folder
    clear(folder)


def mount(server: RunningServer, place: Path, warm_rate_bytes: int = 0, view: str = AUTO) -> None:
    options = MountOptions(
        server=server.unix,
        memory_bytes=128 * MIB,
        log_file=f"{place}.log",
        warm_rate_bytes=warm_rate_bytes,
        view=view,
    )
    control.mount("warmed", place, options)


def test_a_mount_is_warmed_before_anybody_reads(server: RunningServer, dlcmd: Dlcmd, place: Path) -> None:
    mount(server, place)
    assert "warm" in os.listdir(place / ".dieselfs")
    assert json.loads((place / ".dieselfs/warm").read_text())["node"]["pinned_bytes"] == 0
    assert not any(name.startswith("warm-") for name in os.listdir(place / ".dieselfs"))
    assert stats_of(place)["fetches"]["chunks"] == 0, "nobody has read it"
    assert dlcmd("warm", "-n", place).text == f"would warm {place}\n"

    assert dlcmd("warm", place, "--wait", "100", "--timeout", PATIENCE).text.startswith(f"{place}: 100.0%")
    assert stats_of(place)["fetches"]["chunks"] == CHUNKS
    told = json.loads((place / ".dieselfs/warm").read_text())
    assert told["job"] is None and told["node"]["pinned_bytes"] == told["node"]["wanted_bytes"] > 0
    for number in range(FILES):
        assert (place / str(number)).read_bytes() == content(number)
    assert stats_of(place)["fetches"] == {**stats_of(place)["fetches"], "chunks": CHUNKS, "ranges": 0}


def test_what_the_kernel_has_reclaimed_is_not_warm(server: RunningServer, dlcmd: Dlcmd, place: Path) -> None:
    mount(server, place, view=FUSE)  # else `posix_fadvise` reaches the copies of EROFS, but not the image
    dlcmd("warm", place, "--wait", "100", "--timeout", PATIENCE)
    for number in range(FILES):
        descriptor = os.open(place / str(number), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

    def is_noticed() -> bool:
        """The daemon looks once a second at most."""
        dlcmd("warm", place, "--wait", "100", "--timeout", PATIENCE)
        return bool(stats_of(place)["prefetch"]["reclaimed_chunks"] >= CHUNKS)

    wait_for(is_noticed, "the mount has looked at its pages", 60)
    pushed = stats_of(place)["prefetch"]
    assert pushed["pushed_bytes"] >= 2 * FILES * FILE_BYTES * 0.9, "all but the tripwires, again"


def test_one_command_warms_all_nodes_of_a_job(server: RunningServer, dlcmd: Dlcmd) -> None:
    nodes = ["node-0", "node-1", "node-2"]
    with job_mounts(server, "warmed", dlcmd.folder / "nodes", nodes) as places:
        summary = dlcmd("warm", places[0], "--wait", "80%", "--timeout", PATIENCE, "--json").summary
        assert (summary["job"], sorted(summary["nodes"]), summary["unknown"]) == ("training", nodes, [])
        assert summary["pinned_bytes"] >= 0.8 * summary["wanted_bytes"]
        assert summary["wanted_bytes"] == FILES * FILE_BYTES

        ran = dlcmd("warm", places[1], "--wait", "100%", "--timeout", PATIENCE)
        assert ran.text.startswith("job training, 3 nodes: 100.0% is in memory, 6.1 MiB of 6.1 MiB")
        assert loads(places) == CHUNKS
        for number in range(FILES):
            assert (places[2] / str(number)).read_bytes() == content(number)
        assert loads(places) == CHUNKS


def test_a_mount_that_is_attached_to_its_node_speaks_for_the_job_as_well(
    server: RunningServer, dlcmd: Dlcmd
) -> None:
    with job_mounts(server, "warmed", dlcmd.folder / "nodes", ["node-0", "node-1", "node-0"]) as places:
        (attached,) = (place for place in places if not stats_of(place)["job"]["is_master"])
        summary = dlcmd("warm", attached, "--wait", "100%", "--timeout", PATIENCE, "--json").summary
        assert (sorted(summary["nodes"]), summary["unknown"]) == (["node-0", "node-1"], [])
        assert summary["pinned_bytes"] == summary["wanted_bytes"] == FILES * FILE_BYTES
        node = json.loads((attached / ".dieselfs/warm").read_text())["node"]
        assert node["pinned_bytes"] == summary["nodes"]["node-0"]["pinned_bytes"]


def test_when_the_time_is_over_it_says_how_far_it_is(
    server: RunningServer, dlcmd: Dlcmd, place: Path
) -> None:
    mount(server, place, warm_rate_bytes=SLOW_BYTES)
    assert dlcmd("warm", place, "--wait", "1%", "--timeout", PATIENCE, "--json").summary["share"] < 0.5
    ran = dlcmd("warm", "-q", place, "--wait", "100%", "--timeout", "1", exit_code=EXIT_PARTIAL)
    assert ran.stderr.startswith(f"dlcmd: {place}: after 1.0 s ") and "% is in memory" in ran.stderr


def test_nodes_that_do_not_answer_are_named(server: RunningServer, dlcmd: Dlcmd) -> None:
    with job_mounts(server, "warmed", dlcmd.folder / "nodes", ["node-0", "node-1"]) as places:
        assert (
            dlcmd("warm", places[0], "--wait", "100%", "--timeout", PATIENCE, "--json").summary["share"] == 1
        )
        supervision = supervision_of(str(places[1]))
        assert supervision is not None
        os.kill(supervision.daemon, signal.SIGSTOP)
        try:
            told = json.loads((places[0] / ".dieselfs/warm").read_text())
            while told["job"]["unknown"] == []:  # as long as the answer of before is fresh
                told = json.loads((places[0] / ".dieselfs/warm").read_text())
            assert told["job"]["unknown"] == ["node-1"] and list(told["job"]["nodes"]) == ["node-0"]
            assert told["node"]["share"] == 1
            known_bytes, dataset_bytes = told["node"]["pinned_bytes"], told["dataset_bytes"]
            assert dataset_bytes == FILES * FILE_BYTES > known_bytes
            assert told["job"]["wanted_bytes"] == min(2 * known_bytes, dataset_bytes)
        finally:
            os.kill(supervision.daemon, signal.SIGCONT)


def test_what_cannot_be_is_said_in_a_line(server: RunningServer, dlcmd: Dlcmd, place: Path) -> None:
    assert "no dataset is mounted there" in dlcmd("warm", place, exit_code=EXIT_NOT_FOUND).stderr
    mount(server, place)
    for wrong in ("0%", "101%", "most", "-5", "nan"):
        refused = dlcmd("warm", place, f"--wait={wrong}", exit_code=EXIT_USAGE)
        assert "is not a percentage above 0" in refused.stderr
    assert "--wait" in dlcmd("warm", place, "--timeout", "5", exit_code=EXIT_USAGE).stderr
    assert stats_of(place)["fetches"]["chunks"] == 0
