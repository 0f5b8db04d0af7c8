"""dlcmd cp: inside the servers, between datasets and tags; to and from this machine it is put and get."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd

ALL = ["empty/", "latest", "none", "train/", "train/cat.txt", "train/more/", "train/more/dog.bin"]


def listed(dlcmd: Dlcmd, place: str) -> list[str]:
    """The paths below a place, relative to it."""
    prefix = place.partition("//")[2].partition("/")[2]
    return [line.removeprefix(prefix).lstrip("/") for line in dlcmd("ls", "-R", place).lines]


@pytest.mark.parametrize(
    ("source", "destination", "prefix"),
    [
        ("", "", ""),
        ("/", "/in/here", "in/here/"),
        ("/train", "/", "train/"),
        ("/train", "/in/", "in/train/"),
        ("/train", "/in", "in/"),
        ("/train/", "/in/", "in/"),
        ("/train/", "", ""),
    ],
)
def test_slashes(dlcmd: Dlcmd, pets: str, source: str, destination: str, prefix: str) -> None:
    other = f"{pets[-60:]}-copy".strip("-")
    names = ALL if source in ("", "/") else [name[6:] for name in ALL if name[:6] == "train/" != name]
    ran = dlcmd("cp", "-r", "--json", f"dl://{pets}{source}", f"dl://{other}{destination}")
    above = {prefix[: end + 1] for end, letter in enumerate(prefix) if letter == "/"}
    assert listed(dlcmd, other) == sorted({prefix + name for name in names} | above)
    top = f"dl://{pets}{source if source.endswith('/') else source + '/'}"
    assert dlcmd("diff", top, f"dl://{other}/{prefix}").lines == [f"no differences in {len(names)} entries"]
    again = dlcmd("cp", "-r", "--json", f"dl://{pets}{source}", f"dl://{other}{destination}").summary
    assert again["copied"] == 0 and again["skipped"] >= ran.summary["copied"]
    assert "clean" in dlcmd("fsck", other).text
    assert listed(dlcmd, pets) == ALL


def test_files_take_the_name_given_or_go_into_a_folder(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    dlcmd("cp", f"{root}/train/cat.txt", f"{root}/lynx.txt")
    dlcmd("cp", f"{root}/train/cat.txt", f"{root}/latest", f"{root}/empty")
    dlcmd("cp", f"{root}/train/cat.txt", f"{root}/train/more")  # a folder that exists
    assert listed(dlcmd, f"{root}/empty") == ["cat.txt", "latest"]
    for place in ("lynx.txt", "empty/cat.txt", "train/more/cat.txt"):
        assert dlcmd("cat", f"{root}/{place}").stdout == b"xxxxx"
    before, after = (
        dlcmd("stat", "--json", f"{root}/{name}").objects[0] for name in ("train/cat.txt", "lynx.txt")
    )
    assert {**before, "path": "lynx.txt"} == after


def test_what_exists_is_refused_kept_or_replaced(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    copy = ("cp", f"{root}/train/cat.txt", f"{root}/train/more/dog.bin")
    ran = dlcmd(*copy, exit_code=EXIT_USAGE)
    assert (
        "dog.bin exists with other content; nothing was changed: -f replaces, --no-clobber keeps"
        in ran.stderr
    )
    assert dlcmd("--json", *copy, "--no-clobber").summary["skipped"] == 1
    dlcmd(*copy, "-f", "--no-clobber", exit_code=EXIT_USAGE)
    assert len(dlcmd("cat", f"{root}/train/more/dog.bin").stdout) == 4096
    dlcmd(*copy, "-f")
    assert dlcmd("cat", f"{root}/train/more/dog.bin").stdout == b"xxxxx"
    ran = dlcmd("cp", "-r", f"{root}/train", f"{root}/empty")
    ran = dlcmd("cp", "-r", f"{root}/train/more", f"{root}/empty", exit_code=EXIT_USAGE)
    assert f"to go into it, write {root}/empty/ with a slash at its end" in ran.stderr


def test_a_dry_run_lists_the_new_paths(dlcmd: Dlcmd, pets: str) -> None:
    plan = dlcmd("cp", "-n", "-r", "--json", f"dl://{pets}/train", f"dl://{pets[-50:]}-none/x")
    assert [one["path"] for one in plan.objects] == ["x", "x/cat.txt", "x/more", "x/more/dog.bin"]
    assert plan.summary["dry_run"] and plan.summary["copied"] == 4
    dlcmd("info", f"dl://{pets[-50:]}-none", exit_code=EXIT_NOT_FOUND)
    text = dlcmd("cp", "-n", f"dl://{pets}/none", f"dl://{pets}/some").lines
    assert text == [
        f"would copy dl://{pets}/none -> dl://{pets}/some",
        f"would copy dl://{pets}/none to dl://{pets}/some: 1 entry (0 B)",
    ]


def test_patterns_and_a_tag(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    dlcmd("tag", "add", root, "v1")
    dlcmd("rm", "-r", f"{root}/train")
    dlcmd("cp", "-r", "--exclude", "*.bin", f"{root}@v1/train", f"{root}/back")
    assert listed(dlcmd, f"{root}/back") == ["cat.txt", "more/"]
    dlcmd("cp", f"{root}@v1/train/more/dog.bin", f"{root}/back/more/")
    dlcmd("cp", "-r", "-q", f"{root}@v1/", root)
    assert "no differences" in dlcmd("diff", f"{root}@v1/train", f"{root}/train").text
    dlcmd("cp", f"{root}/none", f"{root}@v1/x", exit_code=EXIT_USAGE)


def test_with_files_of_this_machine(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    (dlcmd.folder / "new").write_text("new")
    dlcmd("cp", "new", f"{root}/train/")
    dlcmd("cp", "-r", "--exclude", "*.bin", f"{root}/train", "out")
    found = {os.path.relpath(path, dlcmd.folder / "out") for path in (dlcmd.folder / "out").rglob("*")}
    assert found == {"train", "train/cat.txt", "train/more", "train/new"}
    assert Path(dlcmd.folder, "out/train/new").read_text() == "new"
    assert len(dlcmd("cp", "-n", "-r", f"{root}/train", "elsewhere").lines) == 6
    for names in (["new", "other"], ["new", f"{root}/none", root], ["new"], ["--no-clobber", "new", root]):
        dlcmd("cp", *names, exit_code=EXIT_USAGE)


def test_what_cannot_be_copied(dlcmd: Dlcmd, pets: str) -> None:
    root = f"dl://{pets}"
    dlcmd("cp", f"{root}/no", f"{root}/where", exit_code=EXIT_NOT_FOUND)
    for words, message in (
        (["/train", "/x"], "copy it with -r"),
        (["-r", "/train", "/train/more/"], "into itself"),
        (["/none", "/none"], "onto itself"),
        (["/none/", "/x"], "not a folder"),
        (["/none", "/train/cat.txt/x"], "cat.txt is not a folder"),
        (["-r", "/train/", "/none"], "none is a file, and train a folder"),
        (["/none", "/train/../x"], "'..'"),
    ):
        places = [word if word.startswith("-") else root + word for word in words]
        assert message in dlcmd("cp", *places, exit_code=EXIT_USAGE).stderr, words
    assert listed(dlcmd, root) == ALL
