"""dlcmd rm: files, folders, everything; and what a dry run says."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def paths(dlcmd: Dlcmd, dataset: str) -> set[str]:
    return {one["path"] for one in dlcmd("ls", "-R", "--json", f"dl://{dataset}").objects}


def test_a_file_and_a_link_are_deleted(dlcmd: Dlcmd, pets: str) -> None:
    before = paths(dlcmd, pets)
    ran = dlcmd("rm", f"dl://{pets}/none", f"dl://{pets}/latest")
    assert ran.text == "deleted 2 entries\n"
    assert paths(dlcmd, pets) == before - {"none", "latest"}
    dlcmd("rm", f"dl://{pets}/none", exit_code=EXIT_NOT_FOUND)


def test_a_folder_only_with_r(dlcmd: Dlcmd, pets: str) -> None:
    before = paths(dlcmd, pets)
    assert "delete it with -r" in dlcmd("rm", f"dl://{pets}/train", exit_code=EXIT_USAGE).stderr
    assert dlcmd("rm", "-r", "--json", f"dl://{pets}/train/").summary["entries"] == 4
    assert paths(dlcmd, pets) == {name for name in before if not name.startswith("train")}


def test_nothing_is_deleted_if_one_of_them_cannot_be(dlcmd: Dlcmd, pets: str) -> None:
    before = paths(dlcmd, pets)
    dlcmd("rm", f"dl://{pets}/none", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)
    dlcmd("rm", f"dl://{pets}/none", f"dl://{pets}/train", exit_code=EXIT_USAGE)
    assert paths(dlcmd, pets) == before


def test_a_dry_run_deletes_nothing(dlcmd: Dlcmd, pets: str) -> None:
    before = paths(dlcmd, pets)
    ran = dlcmd("rm", "-rn", f"dl://{pets}/train")
    assert f"would delete dl://{pets}/train/more/dog.bin" in ran.lines
    assert ran.lines[-1] == "would delete 4 entries"
    assert dlcmd("rm", "-rn", "--json", f"dl://{pets}").summary["entries"] == len(before)
    assert paths(dlcmd, pets) == before


def test_everything_only_when_confirmed(dlcmd: Dlcmd, pets: str) -> None:
    assert "add -y" in dlcmd("rm", "-r", f"dl://{pets}/", exit_code=EXIT_USAGE).stderr
    dlcmd("rm", "-ry", f"dl://{pets}/")
    assert paths(dlcmd, pets) == set()
    assert dlcmd("info", "--json", f"dl://{pets}").objects[0]["files"] == 0
