"""What the process costs that reads the sources of an import: both ways read all records, of any speed."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.figures import QUICK
from bench.storage.upload import upload

FILES = 50


@pytest.mark.processes
def test_records_are_read_by_this_process_and_by_another(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="the extra import is not installed")
    trials = {}
    with closing(upload(tmp_path, replace(QUICK, small_files=FILES, large_files=1))) as results:
        for trial in results:
            if trial.title.startswith("Reading"):
                trials[trial.title] = {
                    side.name: (side.amount, side.run().duration_s > 0) for side in trial.sides
                }
    sides = {"by this process": (FILES, True), "by another process, as dlcmd import": (FILES, True)}
    assert trials == {
        f"Reading of an archive {suffix} of {FILES} files of 4,096 bytes": sides for suffix in (".tar", ".h5")
    }
