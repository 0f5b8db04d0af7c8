"""`python -m bench` on papers, and the tables that it prints."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.papers.paper_numbers import Experiment
from dieselfs_client.mount.points.mount_table import dieselfs_mounts

TIMEOUT_S = 900.0
"""A minute or two on an idle machine."""
SHARE = "0.1"
"""Of the data: what is measured takes less time then than what is started for it."""
_BENCH = """\
import runpy
from tests.support import warm
warm.use()
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""
"""`python -m bench`, whose daemons are forks. They take less time to start, and are otherwise the same."""


def printed_by(name: str, folder: Path, options: Sequence[str] = ()) -> str:
    """What a quick run prints, in `folder`; no mount may remain there."""
    command = [
        sys.executable,
        "-c",
        _BENCH,
        name,
        "--quick",
        "--share",
        SHARE,
        "--folder",
        str(folder),
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.terminate()  # after a timeout it still removes its mounts and networks
    assert process.returncode == 0, errors
    left = [record.mountpoint for record in dieselfs_mounts() if str(folder) in record.mountpoint]
    assert not left, "mounts are left"
    return output


def rows_of(printed: str, experiment: Experiment) -> tuple[dict[str, str], str]:
    """Of its table: by row the ratio here, in order, and what differs."""
    blocks = [block.splitlines() for block in printed.split("\n\n")]
    head = f"| {experiment.where}: {experiment.title} | paper | here | rounds | here : paper | processor s | shape |"
    (lines,) = [block for block in blocks if block[0] == head]
    *rows, last = [line.strip("| ").split(" | ") for line in lines[2:]]
    return {row[0]: row[2] for row in rows}, last[0]
