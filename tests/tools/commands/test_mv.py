"""dlcmd mv: another path for a file or a folder."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


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
    dlcmd("mv", f"{root}/none", "dl://other/none", exit_code=EXIT_USAGE)
