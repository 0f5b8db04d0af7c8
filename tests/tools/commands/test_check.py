"""dlcmd check: what was put is there, byte for byte, and each difference is named."""

import os

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from tests.support.dlcmd import Dlcmd
from tests.tools.commands.conftest import MTIME_NS


def test_what_was_put_is_there(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("check", "pets/", f"dl://{pets}/").lines == ["no differences in 7 entries"]
    dlcmd("put", "-r", "pets", f"dl://{pets}/copy/")
    assert dlcmd("check", "pets", f"dl://{pets}/copy/").lines == ["no differences in 7 entries"]
    assert dlcmd("check", "pets/train/", f"dl://{pets}/train").lines == ["no differences in 3 entries"]


def test_each_difference_is_named(dlcmd: Dlcmd, pets: str) -> None:
    root = dlcmd.folder / "pets"
    (root / "train/cat.txt").write_bytes(b"xxxxy")
    os.utime(root / "train/cat.txt", ns=(0, MTIME_NS))
    (root / "empty").rmdir()
    (root / "new.tmp").touch()
    (root / "latest").unlink()
    (root / "latest").symlink_to("none")
    os.utime(root / "none", ns=(0, 0))
    ran = dlcmd("check", "pets/", f"dl://{pets}/", exit_code=EXIT_PARTIAL)
    assert ran.lines == ["- empty/", "* latest", "+ new.tmp", "~ none", "* train/cat.txt"]
    options = ["--exclude", "*.tmp", "--exclude", "empty", "--exclude", "latest"]
    ran = dlcmd("check", *options, "pets/", f"dl://{pets}/", exit_code=EXIT_PARTIAL)
    assert ran.lines == ["~ none", "* train/cat.txt"]
    quick = dlcmd("check", "--quick", *options, "pets/", f"dl://{pets}/", exit_code=EXIT_PARTIAL)
    assert quick.lines == ["~ none"]  # the size and the time of the other are the same


def test_what_cannot_be_read_is_a_failure(dlcmd: Dlcmd, pets: str) -> None:
    os.mkfifo(dlcmd.folder / "pets/pipe")
    ran = dlcmd("check", "--json", "pets/", f"dl://{pets}/", exit_code=EXIT_PARTIAL)
    assert ran.summary["added"] == 0 and ran.summary["failed"] == 1
    assert "neither file nor folder" in ran.stderr


def test_bad_input(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("check", "gone/", f"dl://{pets}/", exit_code=EXIT_NOT_FOUND)
    dlcmd("check", "pets", f"dl://{pets}/", exit_code=EXIT_NOT_FOUND)
    dlcmd("check", "pets/", "dl://no-such-dataset/", exit_code=EXIT_NOT_FOUND)
    assert "is not a folder" in dlcmd("check", "pets/none", f"dl://{pets}/", exit_code=EXIT_USAGE).stderr
