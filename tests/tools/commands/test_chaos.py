"""`dlcmd chaos` with real mounts: quick faults; and that nothing is left of them."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_USAGE
from tests.support.dlcmd import Dlcmd

needs_fuse = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@needs_fuse
def test_faults_are_rehearsed_and_leave_nothing(dlcmd: Dlcmd) -> None:
    folder = dlcmd.folder / "tmp"
    folder.mkdir()
    own = Dlcmd(dlcmd.home, dlcmd.folder, {**dlcmd.variables, "TMPDIR": str(folder)})
    ran = own("chaos", "--only", "corrupt-chunk,killed-daemon", "--json")
    daemon, chunk = ran.objects
    assert (daemon["fault"], chunk["fault"]) == ("killed-daemon", "corrupt-chunk")
    assert daemon["reads"] > 0 and daemon["wrong"] == chunk["wrong"] == 0
    assert 0 < chunk["failed"] < chunk["reads"] and "fsck" in chunk["remedy"]
    assert ran.summary["rehearsed"] == 2 and ran.summary["broken"] == 0
    assert [*folder.iterdir()] == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_an_unknown_fault_is_named(dlcmd: Dlcmd) -> None:
    said = dlcmd("chaos", "--only", "lost-node,fire", exit_code=EXIT_USAGE).stderr
    assert "'fire'" in said and "lost-metadata" in said
