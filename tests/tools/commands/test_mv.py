"""dlcmd mv: another path for a file or a folder."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def below(dlcmd: Dlcmd, folder: str) -> list[str]:
    prefix = folder.rpartition("/")[2] + "/"
    return [line.removeprefix(prefix) for line in dlcmd("ls", "-R", folder).lines]


def test_files_and_folders_move(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    before = dlcmd("stat", "--json", f"{root}/train/cat.txt").objects[0]
    assert dlcmd("mv", "-n", f"{root}/train/cat.txt", f"{root}/lynx.txt").text.startswith("would move")
    dlcmd("mv", f"{root}/train/cat.txt", f"{root}/lynx.txt")
    after = dlcmd("stat", "--json", f"{root}/lynx.txt").objects[0]
    assert (after["size"], after["mtime_ns"], after["mode"]) == (
        before["size"],
        before["mtime_ns"],
        before["mode"],
    )
    assert dlcmd("cat", f"{root}/lynx.txt").stdout == b"xxxxx"
    dlcmd("stat", f"{root}/train/cat.txt", exit_code=EXIT_NOT_FOUND)
    dlcmd("mv", f"{root}/train", f"{root}/empty/")
    assert dlcmd("cat", f"{root}/empty/train/more/dog.bin").stdout == b"x" * 4096
    dlcmd("mv", f"{root}/latest", f"{root}/newest")
    assert dlcmd("stat", "--json", f"{root}/newest").objects[0]["target"] == "train/cat.txt"
    assert dlcmd("fsck", root).text.rstrip().endswith("clean")


def test_what_cannot_be_moved(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    dlcmd("mv", f"{root}/no", f"{root}/where", exit_code=EXIT_NOT_FOUND)
    for old, new in (("none", "train/cat.txt"), ("train", "train/more/"), ("none", "none")):
        dlcmd("mv", f"{root}/{old}", f"{root}/{new}", exit_code=EXIT_USAGE)
    dlcmd("tag", "add", root, "v1")
    dlcmd("mv", f"{root}@v1/none", f"{root}/x", exit_code=EXIT_USAGE)


def test_several_files_and_folders_move_to_another_dataset(dlcmd: Dlcmd, pets: str) -> None:
    other = f"dl://{pets[-60:]}-moved"
    ran = dlcmd(
        "mv", "--json", f"dl://{pets}/train", f"dl://{pets}/none", f"dl://{pets}/latest", f"{other}/in/"
    )
    assert (ran.summary["copied"], ran.summary["deleted"], ran.summary["sources"]) == (6, 6, 3)
    assert dlcmd("ls", "-R", f"dl://{pets}").lines == ["empty/"]
    assert dlcmd("ls", f"{other}/in").lines == ["latest", "none", "train/"]
    dlcmd("rebuild", f"dl://{pets}")
    assert dlcmd("ls", "-R", f"dl://{pets}").lines == ["empty/"]


def test_an_interrupted_move_continues(dlcmd: Dlcmd, pets: str) -> None:
    """It has copied a part, or deleted a part."""
    root = f"dl://{pets}"
    dlcmd("cp", "-r", "--exclude", "*.bin", f"{root}/train", f"{root}/new")
    dlcmd("mv", f"{root}/train", f"{root}/new")
    assert below(dlcmd, f"{root}/new") == ["cat.txt", "more/", "more/dog.bin"]
    dlcmd("cp", "-r", f"{root}/new/more", f"{root}/train/")
    assert dlcmd("mv", "--json", f"{root}/train", f"{root}/new").summary["deleted"] == 2
    assert dlcmd("ls", root).lines == ["empty/", "latest", "new/", "none"]


def test_what_patterns_leave_stays(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    dlcmd("mv", "--exclude", "dog.*", f"{root}/train", f"{root}/moved")
    assert below(dlcmd, f"{root}/train") == ["more/", "more/dog.bin"]
    assert below(dlcmd, f"{root}/moved") == ["cat.txt", "more/"]
    dlcmd("mv", "--no-clobber", f"{root}/none", f"{root}/moved/cat.txt")
    assert "none" in dlcmd("ls", root).lines
    dlcmd("mv", "-f", f"{root}/none", f"{root}/moved/cat.txt")
    assert dlcmd("cat", f"{root}/moved/cat.txt").stdout == b"" and "none" not in dlcmd("ls", root).lines
