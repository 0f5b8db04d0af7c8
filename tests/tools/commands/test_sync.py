"""dlcmd sync: the stored folder becomes equal to the local one, and nothing is deleted by mistake."""

import os
import shutil

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_new_changed_and_removed_entries(dlcmd: Dlcmd, pets: str) -> None:
    root = dlcmd.folder / "pets"
    (root / "none").write_bytes(b"changed")
    (root / "new").touch()
    shutil.rmtree(root / "train/more")
    plan = dlcmd("sync", "--json", "-n", "--delete", "pets/", f"dl://{pets}/")
    deletions = [one["path"] for one in plan.objects if one["type"] == "deletion"]
    assert deletions == ["train/more/dog.bin", "train/more"] and plan.summary["deleted"] == 2
    dlcmd("sync", "pets/", f"dl://{pets}/")
    assert dlcmd("find", "--name", "dog.bin", pets).lines  # without --delete
    assert dlcmd("sync", "--json", "--delete", "pets/", f"dl://{pets}/").summary["deleted"] == 2
    assert dlcmd("check", "pets/", f"dl://{pets}/").lines == ["no differences in 6 entries"]
    again = dlcmd("sync", "--json", "--delete", "pets/", f"dl://{pets}/").summary
    assert again["stored"] == again["deleted"] == 0


def test_a_folder_becomes_a_file_and_a_file_a_folder(dlcmd: Dlcmd, pets: str) -> None:
    root = dlcmd.folder / "pets"
    shutil.rmtree(root / "train")
    (root / "train").touch()
    (root / "none").unlink()
    (root / "none").mkdir()
    (root / "none/inside").touch()
    dlcmd("sync", "--delete", "pets/", f"dl://{pets}/")
    assert dlcmd("check", "pets/", f"dl://{pets}/").lines == ["no differences in 5 entries"]


def test_only_the_place_of_the_folder_is_changed(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("sync", "--delete", "pets/empty", f"dl://{pets}/train/")
    assert dlcmd("ls", f"dl://{pets}/train").lines == ["cat.txt", "empty/", "more/"]


def test_excluded_entries_stay(dlcmd: Dlcmd, pets: str) -> None:
    root = dlcmd.folder / "pets"
    shutil.rmtree(root / "train")
    (root / "none").unlink()
    ran = dlcmd("sync", "--json", "--delete", "--exclude", "train", "pets/", f"dl://{pets}/")
    assert ran.summary["deleted"] == 1
    assert dlcmd("ls", "-R", pets).lines == [
        "empty/",
        "latest",
        "train/",
        "train/cat.txt",
        "train/more/",
        "train/more/dog.bin",
    ]


def test_a_folder_with_excluded_entries_stays(dlcmd: Dlcmd, pets: str) -> None:
    shutil.rmtree(dlcmd.folder / "pets/train")
    arguments = "sync", "--json", "--delete", "--exclude", "*.bin", "pets/", f"dl://{pets}/"
    assert dlcmd(*arguments).summary["deleted"] == 1
    assert dlcmd("find", f"dl://{pets}/train").lines == [
        f"dl://{pets}/train/more/",
        f"dl://{pets}/train/more/dog.bin",
    ]
    assert dlcmd(*arguments).summary["deleted"] == 0


def test_nothing_is_deleted_by_mistake(dlcmd: Dlcmd, pets: str) -> None:
    (dlcmd.folder / "empty").mkdir()
    arguments = "sync", "--delete", "empty/", f"dl://{pets}/"
    assert "the source is empty" in dlcmd(*arguments, exit_code=EXIT_USAGE).stderr
    dlcmd("sync", "--delete", "gone/", f"dl://{pets}/", exit_code=EXIT_NOT_FOUND)
    (dlcmd.folder / "pets/none").unlink()
    os.mkfifo(dlcmd.folder / "pets/pipe")
    ran = dlcmd("sync", "--delete", "pets/", f"dl://{pets}/", exit_code=EXIT_PARTIAL)
    assert "nothing is deleted, because sources failed" in ran.stderr
    assert dlcmd("find", "--name", "none", pets).lines
    assert dlcmd("sync", "-y", "--delete", "empty/", f"dl://{pets}/").lines[-1].endswith("entries")
    assert dlcmd("ls", pets).lines == []


def test_a_dataset_that_does_not_exist_is_created(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("rb", "-y", f"dl://{pets}")
    dlcmd("sync", "-n", "--delete", "pets/", f"dl://{pets}/")
    dlcmd("sync", "--delete", "pets/", f"dl://{pets}/")
    assert dlcmd("check", "pets/", f"dl://{pets}/").lines == ["no differences in 7 entries"]
