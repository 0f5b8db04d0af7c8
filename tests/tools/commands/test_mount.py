"""dlcmd mount, umount and mounts: there and back again."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE, MountError
from dieselfs_client import control
from dieselfs_tools.comparison import compare_trees
from tests.support.dlcmd import Dlcmd

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")


@pytest.fixture
def place(dlcmd: Dlcmd) -> Iterator[Path]:
    """A folder to mount on, free again afterwards."""
    folder = dlcmd.folder / "mount point"
    folder.mkdir()
    yield folder
    with suppress(MountError):
        control.unmount(folder, lazily=True)


def test_a_dataset_is_mounted_listed_read_and_unmounted(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    assert dlcmd("mount", "-n", pets, place).text == f"would mount dl://{pets} on {place}\n"
    assert os.listdir(place) == []
    ran = dlcmd("mount", pets, place, "--json", "--memory", "64M")
    assert (ran.summary["dataset"], ran.summary["mountpoint"]) == (pets, str(place))
    found = compare_trees(os.fsencode(dlcmd.folder / "pets"), os.fsencode(place))
    assert (found.files, found.shown) == (3, [])

    (listed,) = (one for one in dlcmd("mounts", "--json").objects if one["mountpoint"] == str(place))
    assert (listed["dataset"], listed["is_stale"]) == (pets, False)
    assert f"dl://{pets} on {place} (process " in dlcmd("mounts").text

    assert "mounted there already" in dlcmd("mount", pets, place, exit_code=EXIT_USAGE).stderr
    assert dlcmd("umount", "-n", place).text == f"would unmount {place}\n"
    with open(place / "train" / "cat.txt", "rb") as file:
        assert "busy" in dlcmd("umount", place, exit_code=EXIT_USAGE).stderr
        assert file.read() == b"xxxxx"
    assert dlcmd("umount", place).text == f"unmounted {place}\n"
    assert os.listdir(place) == []
    assert "no dataset is mounted there" in dlcmd("umount", place, exit_code=EXIT_USAGE).stderr


def test_an_older_generation_can_be_mounted(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    generation = dlcmd("info", "--json", f"dl://{pets}").objects[0]["generation"]
    dlcmd("ls", "-R", f"dl://{pets}")
    dlcmd("rm", "-ry", f"dl://{pets}/")
    dlcmd("mount", "--generation", str(generation), f"dl://{pets}/", place)
    assert (place / "train" / "cat.txt").read_bytes() == b"xxxxx"
    dlcmd("umount", "--lazy", place)


def test_what_cannot_be_mounted(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    dlcmd("mount", "no-such-dataset", place, exit_code=EXIT_NOT_FOUND)
    assert "mkdir -p" in dlcmd("mount", pets, "nowhere", exit_code=EXIT_USAGE).stderr
    (place / "file").touch()
    assert "not empty" in dlcmd("mount", pets, place, exit_code=EXIT_USAGE).stderr
    dlcmd("mount", "-n", pets, place, exit_code=EXIT_USAGE)
    assert "not a folder" in dlcmd("mount", pets, place / "file", exit_code=EXIT_USAGE).stderr
    dlcmd("mount", pets, place, "-o", "no_such_option", exit_code=EXIT_USAGE)
    dlcmd("mount", pets, place, "--memory", "1K", exit_code=EXIT_USAGE)
