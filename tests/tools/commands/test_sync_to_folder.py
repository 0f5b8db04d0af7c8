"""dlcmd sync from a dataset: the local folder becomes equal, and nothing is deleted by mistake, or through a link."""

import os
import shutil
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


@pytest.fixture
def local(dlcmd: Dlcmd, pets: str) -> Path:
    """The folder of the dataset, as it is stored."""
    return dlcmd.folder / "pets"


def assert_equal(dlcmd: Dlcmd, pets: str, entries: int = 7) -> None:
    assert dlcmd("check", "pets/", f"dl://{pets}/").lines == [f"no differences in {entries} entries"]


def test_new_changed_and_removed_entries(dlcmd: Dlcmd, pets: str, local: Path) -> None:
    (local / "none").write_bytes(b"changed")
    (local / "new").mkdir()
    (local / "new/file").touch()
    (local / "latest").unlink()
    shutil.rmtree(local / "train/more")
    plan = dlcmd("sync", "--json", "-n", "--delete", f"dl://{pets}/", "pets")
    assert [one["path"] for one in plan.objects if one["type"] == "entry"] == [
        "latest",
        "none",
        "train/more",
        "train/more/dog.bin",
    ]
    deleted = [one["destination"] for one in plan.objects if one["type"] == "deletion"]
    assert deleted == ["pets/new/file", "pets/new"]
    ran = dlcmd("sync", "--json", f"dl://{pets}/", "pets")
    assert (ran.summary["written"], ran.summary["deleted"], (local / "new").exists()) == (4, 0, True)
    assert dlcmd("sync", "--json", "--delete", f"dl://{pets}/", "pets").summary["deleted"] == 2
    assert_equal(dlcmd, pets)
    again = dlcmd("sync", "--json", "--delete", f"dl://{pets}/", "pets").summary
    assert (again["written"], again["skipped"], again["deleted"]) == (0, 7, 0)


def test_a_new_folder_and_the_slash(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("sync", f"dl://{pets}/train", "out")
    assert sorted(os.listdir(dlcmd.folder / "out/train")) == ["cat.txt", "more"]
    dlcmd("sync", f"dl://{pets}/train/", "flat")
    assert sorted(os.listdir(dlcmd.folder / "flat")) == ["cat.txt", "more"]
    dlcmd("tag", "add", f"dl://{pets}", "v1")
    dlcmd("rm", "-r", f"dl://{pets}/train")
    shutil.rmtree(dlcmd.folder / "flat")
    dlcmd("sync", f"dl://{pets}@v1/train/", "flat")
    assert (dlcmd.folder / "flat/cat.txt").read_bytes() == b"xxxxx"


def test_the_same_bytes_get_mode_and_time_only(dlcmd: Dlcmd, pets: str, local: Path) -> None:
    cat, dog = local / "train/cat.txt", local / "train/more/dog.bin"
    cat.chmod(0o600)
    os.utime(cat, ns=(0, 5))
    dog.write_bytes(b"y" * 4096)
    os.utime(local / "latest", ns=(0, 7), follow_symlinks=False)
    number = cat.stat().st_ino
    ran = dlcmd("sync", "--json", f"dl://{pets}/", "pets").summary
    assert (ran["written"], ran["written_bytes"]) == (3, 4096)
    assert cat.stat().st_ino == number
    assert_equal(dlcmd, pets)


def test_a_folder_becomes_a_file_and_a_file_a_folder(dlcmd: Dlcmd, pets: str, local: Path) -> None:
    (local / "none").unlink()
    (local / "none/inside").mkdir(parents=True)
    shutil.rmtree(local / "train")
    (local / "train").touch()
    ran = dlcmd("sync", f"dl://{pets}/", "pets", exit_code=EXIT_PARTIAL)
    assert "train: a link or a file exists" in ran.stderr and (local / "none/inside").is_dir()
    dlcmd("sync", "--delete", f"dl://{pets}/", "pets")
    assert_equal(dlcmd, pets)


def test_what_is_not_selected_is_neither_written_nor_deleted(dlcmd: Dlcmd, pets: str, local: Path) -> None:
    (local / "train/cat.txt").write_bytes(b"mine")
    (local / "own/kept.txt").parent.mkdir()
    (local / "own/kept.txt").touch()
    (local / "own/gone.bin").touch()
    dlcmd("sync", "--delete", "--exclude", "*.txt", f"dl://{pets}/", "pets")
    assert (local / "train/cat.txt").read_bytes() == b"mine"
    assert os.listdir(local / "own") == ["kept.txt"]


def test_nothing_outside_is_touched(dlcmd: Dlcmd, pets: str, local: Path) -> None:
    outside = dlcmd.folder / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"stays")
    shutil.rmtree(local / "train")
    (local / "train").symlink_to(outside)
    (local / "link").symlink_to(outside / "file")
    dlcmd("sync", "--delete", f"dl://{pets}/", "pets")
    assert_equal(dlcmd, pets)
    assert os.listdir(outside) == ["file"] and (outside / "file").read_bytes() == b"stays"


def test_nothing_is_deleted_by_mistake(dlcmd: Dlcmd, pets: str, local: Path) -> None:
    arguments = ("sync", "--delete", f"dl://{pets}/empty/", "pets")
    assert "the source is empty" in dlcmd(*arguments, exit_code=EXIT_USAGE).stderr
    os.mkfifo(local / "pipe")
    (local / "new").touch()
    ran = dlcmd("sync", "--delete", f"dl://{pets}/", "pets", exit_code=EXIT_PARTIAL)
    assert "nothing is deleted, because entries failed" in ran.stderr and (local / "new").exists()
    (local / "pipe").unlink()
    for words, exit_code in (
        ((f"dl://{pets}/none", "pets"), EXIT_USAGE),
        ((f"dl://{pets}/", f"dl://{pets}/"), EXIT_USAGE),
        ((f"dl://{pets}/gone/", "pets"), EXIT_NOT_FOUND),
        ((f"dl://{pets}/", "pets/none"), EXIT_USAGE),
    ):
        dlcmd("sync", "--delete", *words, exit_code=exit_code)
    dlcmd("sync", "-y", "--delete", f"dl://{pets}/empty/", "pets")
    assert os.listdir(local) == []
