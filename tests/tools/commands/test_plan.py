"""`dlcmd plan`: from the speeds of a file to epochs, memory and traffic."""

from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd
from tests.support.speeds import SPEEDS, write_speeds

FILES, FILE_BYTES = 10, 100_000


@pytest.fixture
def speeds(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> Path:
    for number in range(FILES):
        place = tmp_path / "source" / str(number)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(bytes(FILE_BYTES))
    dlcmd("put", "-r", f"{tmp_path}/source/", f"dl://{dataset}/")
    write_speeds(tmp_path / "speeds.json")
    return tmp_path / "speeds.json"


def test_nodes_that_pool_their_memory_fetch_once(dlcmd: Dlcmd, dataset: str, speeds: Path) -> None:
    ran = dlcmd("plan", dataset, "--speeds", speeds, "--nodes", "4", "--pool", "--servers", "1MB/s", "--json")
    first, later = ran.objects
    summary = ran.summary
    assert (first["from_servers_bytes"], later["from_servers_bytes"]) == (FILES * FILE_BYTES, 0)
    assert (first["limit"], first["seconds"]) == ("servers", pytest.approx(1.0))
    assert (first["from_peers_bytes"], later["from_peers_bytes"]) == (FILES * FILE_BYTES * 3, 0)
    assert (summary["files"], summary["bytes"]) == (FILES, FILES * FILE_BYTES)
    assert (summary["kept_share"], summary["resident_share"]) == (1, 1)


def test_a_training_that_computes_longer_does_not_wait(dlcmd: Dlcmd, dataset: str, speeds: Path) -> None:
    first, _ = dlcmd("plan", dataset, "--speeds", speeds, "--batch", "2", "--compute", "1s", "--json").objects
    assert (first["limit"], first["seconds"], first["waiting_s"]) == ("computing", 5, 0)
    reading_s = SPEEDS.first.start_s + SPEEDS.first.of_files(FILES, FILES * FILE_BYTES)
    assert first["parts_s"]["reading"] == pytest.approx(reading_s)


def test_the_text_names_the_limit_and_the_memory(dlcmd: Dlcmd, dataset: str, speeds: Path) -> None:
    text = dlcmd("plan", dataset, "--speeds", speeds, "--memory", "64MiB").stdout.decode()
    assert "limited by" in text and "100% of" in text and "dl://measured" in text


def test_memory_that_no_mount_can_do_with_is_refused(dlcmd: Dlcmd, dataset: str, speeds: Path) -> None:
    ran = dlcmd("plan", dataset, "--speeds", speeds, "--memory", "100kB", exit_code=EXIT_USAGE)
    assert "give at least --memory" in ran.stderr


def test_a_folder_has_the_memory_of_a_mount_of_its_own(
    dlcmd: Dlcmd, dataset: str, speeds: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(FILE_BYTES))
    dlcmd("put", tmp_path / "file", f"dl://{dataset}/part/file")
    summary = dlcmd("plan", f"{dataset}/part", "--speeds", speeds, "--memory", "64MiB", "--json").summary
    assert (summary["files"], summary["bytes"], summary["kept_share"]) == (1, FILE_BYTES, 1)


def test_without_speeds_the_way_to_them_is_named(dlcmd: Dlcmd, dataset: str, speeds: Path) -> None:
    ran = dlcmd("plan", dataset, "--speeds", "nowhere.json", exit_code=EXIT_NOT_FOUND)
    assert "run 'dlcmd bench' first" in ran.stderr


def test_a_job_without_nodes_is_refused(dlcmd: Dlcmd, dataset: str, speeds: Path) -> None:
    assert "nodes" in dlcmd("plan", dataset, "--speeds", speeds, "--nodes", "0", exit_code=EXIT_USAGE).stderr
