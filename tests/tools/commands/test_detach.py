"""dlcmd detach: the files of sources go, and the sources stay."""

import os

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd
from tests.tools.commands.test_import_ import tar_of


def test_the_files_of_a_source_go(dlcmd: Dlcmd, dataset: str) -> None:
    location = f"dl://{dataset}"
    (dlcmd.folder / "shards").mkdir()
    for number in range(3):
        members = {f"{number}/{n}.jpg": os.urandom(100) for n in range(10)}
        (dlcmd.folder / f"shards/{number}.tar").write_bytes(tar_of(members))
    dlcmd("attach", "shards/0.tar", "shards/1.tar", "shards/2.tar", f"{location}/")
    (dlcmd.folder / "shards/1.tar").unlink()
    ran = dlcmd("detach", "shards/1.tar", location)
    assert ran.text == "detached 10 entries of 1 source; the sources are unchanged\n"
    assert dlcmd("info", "--json", location).objects[0]["files"] == 20
    dlcmd("get", "-r", location, "got")
    assert dlcmd("detach", "--json", "shards", location).summary["sources"] == 2
    assert dlcmd("info", "--json", location).objects[0]["files"] == 0
    assert (dlcmd.folder / "shards/0.tar").exists()


def test_what_is_not_attached(dlcmd: Dlcmd, dataset: str) -> None:
    location = f"dl://{dataset}"
    (dlcmd.folder / "a.tar").write_bytes(tar_of({"a": b"1"}))
    dlcmd("import", "a.tar", f"{location}/")
    ran = dlcmd("detach", "a.tar", location, exit_code=EXIT_NOT_FOUND)
    assert f"a.tar: nothing of {dataset} is attached to it; dlcmd attach --list {location}" in ran.stderr
    dlcmd("detach", location, exit_code=EXIT_USAGE)
    dlcmd("detach", "a.tar", exit_code=EXIT_USAGE)
    dlcmd("detach", "a.tar", f"{location}/a", exit_code=EXIT_USAGE)
