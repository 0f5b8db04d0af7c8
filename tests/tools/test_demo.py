"""The demonstration: it proves what it says, says when it is not so, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE
from dieselfs_client.mount.points.mount_table import dieselfs_mounts
from tests.support.trees import odd_tree

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")


def demo(
    tmp_path: Path, *arguments: str | Path, exit_code: int = EXIT_OK
) -> "subprocess.CompletedProcess[str]":
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "dieselfs_tools.demo", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(scratch)},
        timeout=120,
        check=False,
    )
    assert done.returncode == exit_code, done
    assert "Traceback" not in done.stderr
    assert os.listdir(scratch) == []
    assert all(not mount.mountpoint.startswith(str(scratch)) for mount in dieselfs_mounts())
    return done


def test_the_main_job_in_numbered_steps(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    done = demo(tmp_path, odd_tree(tmp_path / "tree"))
    steps = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [line.partition(".")[0] for line in steps] == ["1", "2", "3", "4", "5"]
    assert [line.split()[1] for line in steps] == ["Upload,", "Mount", "Compare", "Read", "Unmount:"]
    assert all("files/s" in steps[number] for number in (0, 2, 3))
    assert done.stdout.splitlines()[-1].startswith("All steps succeeded.")
    assert done.stderr == ""


def test_what_cannot_be_uploaded_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree" / "pipe")
    done = demo(tmp_path, tmp_path / "tree", exit_code=EXIT_PARTIAL)
    assert "pipe: neither file nor folder nor link" in done.stderr
    assert "All steps succeeded" not in done.stdout


def test_bad_arguments_are_one_line(tmp_path: Path) -> None:
    assert "there is no such folder" in demo(tmp_path, tmp_path / "none", exit_code=EXIT_NOT_FOUND).stderr
    assert "usage:" in demo(tmp_path, "a", "b", exit_code=EXIT_USAGE).stderr
