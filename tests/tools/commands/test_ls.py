"""dlcmd ls: datasets, folders page by page, everything below."""

import os

import pytest

from dieselfs.errors import EXIT_NOT_FOUND
from dieselfs.limits import LISTING_ENTRIES_MAX
from tests.support.dlcmd import Dlcmd
from tests.tools.commands.conftest import MTIME_NS


def test_datasets_are_listed(dlcmd: Dlcmd, pets: str) -> None:
    assert f"dl://{pets}/" in dlcmd("ls").lines
    listed = {one["dataset"]: one for one in dlcmd("ls", "--json").objects}
    assert (listed[pets]["files"], listed[pets]["bytes"]) == (3, 4101)
    line = next(line for line in dlcmd("ls", "-l").lines if line.endswith(f" dl://{pets}/"))
    assert line.split()[:4] == ["3", "files", "4.0", "KiB"]


def test_an_empty_home_says_what_to_do(dlcmd: Dlcmd) -> None:
    from dieselfs_tools.cli.private_home import private_home

    with private_home() as home:
        nowhere = Dlcmd(home, dlcmd.folder)
        assert nowhere("ls").text.startswith("there are no datasets yet; make one: dlcmd put")
        assert nowhere("ls", "-q").text == ""
        assert nowhere("ls", "--json").summary["datasets"] == 0


def test_a_folder_is_listed_sorted_with_a_slash_behind_folders(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("ls", f"dl://{pets}").lines == ["empty/", "latest", "none", "train/"]
    assert dlcmd("ls", f"dl://{pets}/train/").lines == ["cat.txt", "more/"]
    assert dlcmd("ls", f"dl://{pets}/train/cat.txt").lines == ["cat.txt"]
    assert dlcmd("ls", f"dl://{pets}/empty").lines == []
    dlcmd("ls", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)
    dlcmd("ls", "-R", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)


def test_everything_below_is_listed_with_its_path(dlcmd: Dlcmd, pets: str) -> None:
    everything = ["empty/", "latest", "none", "train/", "train/cat.txt", "train/more/", "train/more/dog.bin"]
    assert dlcmd("ls", "-R", f"dl://{pets}").lines == everything
    assert dlcmd("ls", "-R", f"dl://{pets}/train/more").lines == ["train/more/dog.bin"]


@pytest.mark.parametrize("options", [["-l"], ["-lR"]])
def test_a_long_listing_has_mode_size_time_and_target(dlcmd: Dlcmd, pets: str, options: list[str]) -> None:
    lines = {line.split()[-1]: line for line in dlcmd("ls", *options, f"dl://{pets}").lines}
    assert lines["none"].startswith("-rw-r-----       0 B 2020-09-13 ")
    assert lines["empty/"].startswith("drwxr-xr-x         - 2020-09-13 ")
    assert lines["train/cat.txt"].startswith("lrwxrwxrwx") or "R" in options[0]
    assert any("latest -> train/cat.txt" in line for line in dlcmd("ls", *options, f"dl://{pets}").lines)
    assert dlcmd("ls", *options, "-h", f"dl://{pets}").lines == dlcmd("ls", *options, f"dl://{pets}").lines


def test_sizes_are_exact_on_request(dlcmd: Dlcmd, pets: str) -> None:
    (line,) = dlcmd("ls", "-l", "--bytes", f"dl://{pets}/train/more").lines
    assert line.split()[1] == "4096"
    (line,) = dlcmd("ls", "-lh", f"dl://{pets}/train/more").lines
    assert line.split()[1:3] == ["4.0", "KiB"]


@pytest.mark.parametrize("options", [[], ["-R"]])
def test_json_says_everything(dlcmd: Dlcmd, pets: str, options: list[str]) -> None:
    ran = dlcmd("ls", "--json", *options, f"dl://{pets}")
    listed = {one["path"]: one for one in ran.objects}
    assert listed["none"] == {
        "type": "entry",
        "path": "none",
        "kind": "file",
        "size": 0,
        "mode": "0640",
        "mtime_ns": MTIME_NS,
    }
    assert (listed["latest"]["kind"], listed["latest"]["target"]) == ("link", "train/cat.txt")
    assert ran.summary == {"type": "summary", "exit_code": 0, "entries": len(listed)}


def test_a_folder_of_more_than_a_page_is_listed_whole(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "many").mkdir()
    files = 2 * LISTING_ENTRIES_MAX + 1
    for number in range(files):
        (dlcmd.folder / "many" / f"{number:06}").touch()
    os.mkdir(os.path.join(os.fsencode(dlcmd.folder), b"many", b"\xff"))
    dlcmd("put", "-r", "-q", "many", f"dl://{dataset}/")
    assert dlcmd("ls", f"dl://{dataset}/many").lines == [f"{number:06}" for number in range(files)] + [
        "\\xff/"
    ]


def test_columns_have_headings_on_a_terminal_only(dlcmd: Dlcmd, pets: str) -> None:
    at_terminal = "import os, sys; sys.stdout.isatty = lambda: True; os.environ['NO_COLOR'] = '1'"
    commands = {
        ("ls", "-l"): "changed",
        ("ls", "-l", f"dl://{pets}"): "mode",
        ("usage",): "stored",
    }
    for words, word in commands.items():
        first, *rows = dlcmd.changed(at_terminal, *words).stdout.splitlines()
        assert word in first and rows == dlcmd(*words).lines
        assert dlcmd.changed(at_terminal, *words, "-q").stdout.splitlines() == rows
        assert dlcmd.changed(at_terminal, *words, "--json").stdout.startswith("{")
