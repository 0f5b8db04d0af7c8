"""`dlcmd chaos` with real mounts: each fault, and that nothing is left of them."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_USAGE
from dieselfs_tools.commands.measure import NAMES
from tests.support.dlcmd import Dlcmd

needs_fuse = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
REMEDIES = {
    "lost-node": "avoided the node",
    "killed-daemon": "started another daemon",
    "killed-mount": "the others replaced each",
    "full-disk": "the writer got an error",
    "corrupt-chunk": "fsck --deep named",
    "lost-metadata": "made the metadata of 384 files again",
    "older-metadata": "all 384 newer files were there",
    "lost-chunks": "rebuild refused",
}


@needs_fuse
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk"))
        if name == "full-disk"
        else name
        for name in NAMES
    ],
)
def test_a_fault_is_rehearsed_and_leaves_nothing(name: str, dlcmd: Dlcmd) -> None:
    folder = dlcmd.folder / "tmp"
    folder.mkdir()
    own = Dlcmd(dlcmd.home, dlcmd.folder, {**dlcmd.variables, "TMPDIR": str(folder)})
    ran = own("chaos", "--only", name, "--json")
    (seen,) = ran.objects
    assert seen["fault"] == name and seen["is_as_promised"] and seen["reads"] > 0 and seen["wrong"] == 0
    if name == "corrupt-chunk":
        assert 0 < seen["failed"] < seen["reads"]
    assert REMEDIES[name] in seen["remedy"]
    assert ran.summary["rehearsed"] == 1 and ran.summary["broken"] == 0
    assert [*folder.iterdir()] == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_an_unknown_fault_is_named(dlcmd: Dlcmd) -> None:
    said = dlcmd("chaos", "--only", "lost-node,fire", exit_code=EXIT_USAGE).stderr
    assert "'fire'" in said and "lost-metadata" in said
