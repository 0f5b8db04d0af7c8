"""dlcmd find: all conditions hold, and its locations go into other verbs."""

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["empty/", "latest", "none", "train/", "train/cat.txt", "train/more/", "train/more/dog.bin"]),
        (["--name", "*.txt", "--name", "*.bin"], ["train/cat.txt", "train/more/dog.bin"]),
        (["--name", "train/*", "--type", "folder"], ["train/more/"]),
        (["--name", "more"], ["train/more/"]),
        (["--include", "more"], ["train/more/", "train/more/dog.bin"]),
        (["--exclude", "/train/", "--exclude", "n*"], ["empty/", "latest"]),
        (["--type", "l"], ["latest"]),
        (["--min-size", "5", "--max-size", "4K"], ["train/cat.txt", "train/more/dog.bin"]),
        (["--max-size", "4"], ["none"]),
        (["--name", "nothing"], []),
    ],
)
def test_conditions(dlcmd: Dlcmd, pets: str, options: list[str], found: list[str]) -> None:
    assert dlcmd("find", f"dl://{pets}", *options).lines == [f"dl://{pets}/{path}" for path in found]


def test_a_folder_a_file_and_a_tag(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("tag", "add", f"dl://{pets}", "v1")
    dlcmd("rm", f"dl://{pets}/train/more/dog.bin")
    assert dlcmd("find", f"dl://{pets}@v1/train/more").lines == [f"dl://{pets}@v1/train/more/dog.bin"]
    assert dlcmd("find", f"dl://{pets}/none", f"dl://{pets}/train/more").lines == [f"dl://{pets}/none"]
    dlcmd("find", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)


def test_as_json_and_with_null(dlcmd: Dlcmd, pets: str) -> None:
    ran = dlcmd("find", "--json", "--name", "*.bin", pets)
    assert [(one["path"], one["kind"], one["size"]) for one in ran.objects] == [
        ("train/more/dog.bin", "file", 4096)
    ]
    assert ran.summary["entries"] == 1 and ran.summary["bytes"] == 4096
    raw = dlcmd("find", "-0", "--name", "no*", pets).stdout
    assert raw == f"dl://{pets}/none".encode() + b"\0"
    assert "--null does not go" in dlcmd("find", "-0", "--json", pets, exit_code=EXIT_USAGE).stderr
