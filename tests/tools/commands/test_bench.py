"""`dlcmd bench` on a little data: what it measures, and that nothing stays."""

import json
import os
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_USAGE
from dieselfs_tools.observe.timing import LMDB, MOUNT, PLAIN, TAR
from tests.support.dlcmd import Dlcmd

needs_fuse = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@needs_fuse
def test_each_reader_is_timed_and_the_speeds_are_for_plan(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> None:
    scratch, speeds = tmp_path / "scratch", tmp_path / "speeds.json"
    scratch.mkdir()
    done = dlcmd("bench", "--quick", "--rounds", "1", "--in", scratch, "--save", speeds, "--json")
    *timings, summary = map(json.loads, done.stdout.splitlines())
    assert {each["form"] for each in timings} == {"small", "large"}
    assert {MOUNT, PLAIN, TAR} <= {each["reader"] for each in timings} <= {MOUNT, PLAIN, TAR, LMDB}
    assert all(min(each["first_files_s"], each["later_files_s"]) > 0 for each in timings)
    assert summary["speeds"]["fetch_bytes_s"] > 0 and summary["view"] in ("image", "overlay", "fuse")
    assert summary["rounds"] == 1 and summary["seconds"] > 0
    assert os.listdir(scratch) == [] and str(scratch) not in Path("/proc/mounts").read_text()

    (tmp_path / "file").write_bytes(bytes(100_000))
    dlcmd("put", tmp_path / "file", f"dl://{dataset}/")
    assert dlcmd("plan", dataset, "--speeds", speeds, "--json").summary["files"] == 1


def test_a_folder_that_cannot_be_written_is_named(dlcmd: Dlcmd) -> None:
    assert "/proc/self" in dlcmd("bench", "--in", "/proc/self", exit_code=EXIT_USAGE).stderr
