"""--include, --exclude and --filter-from select the same entries in all verbs that take a tree."""

import io
import tarfile
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_PARTIAL, EXIT_USAGE
from tests.support.dlcmd import Dlcmd

TEXTS = ["--include", "*.txt"]


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("put", ["-r"]),
        ("sync", []),
        ("get", ["-r"]),
        ("import", []),
        ("export", []),
        ("find", []),
        ("ls", ["-R"]),
        ("du", []),
        ("diff", []),
        ("check", []),
        ("rm", ["-r"]),
    ],
)
def test_a_rule_that_is_none_ends_each_verb(dlcmd: Dlcmd, pets: str, verb: str, options: list[str]) -> None:
    (dlcmd.folder / "rules").write_text("*.txt\n")
    source = f"dl://{pets}/" if verb in ("rm", "ls", "du", "find") else "pets/"
    words = [verb, *options, source, f"dl://{pets}/", "--filter-from", "rules"]
    assert "'*.txt' is not known" in dlcmd(*words, exit_code=EXIT_USAGE).stderr


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_up_and_down(dlcmd: Dlcmd, dataset: str, pets: str) -> None:
    (dlcmd.folder / "rules").write_text("# all but the dogs\n- dog.*\n")
    dlcmd("put", "-r", "pets/", f"dl://{dataset}-2/", "--filter-from", "rules")
    assert "train/more/dog.bin" not in dlcmd("ls", "-R", f"dl://{dataset}-2").lines
    dlcmd("get", "-r", f"dl://{pets}/", "out", *TEXTS)
    assert files(dlcmd.folder / "out") == {"train/cat.txt"}
    assert not (dlcmd.folder / "out" / "empty").exists()
    would = dlcmd("get", "-rn", f"dl://{pets}/", "new", "--exclude", "/train/", "--json").objects
    assert {one["path"] for one in would if one["type"] == "entry"} == {"", "empty", "latest", "none"}


def test_export_and_import(dlcmd: Dlcmd, dataset: str, pets: str) -> None:
    dlcmd("export", f"dl://{pets}", "texts.tar", *TEXTS)
    with tarfile.open(dlcmd.folder / "texts.tar") as archive:
        assert archive.getnames() == ["train", "train/cat.txt"]
    dlcmd("export", f"dl://{pets}", "all.tar")
    dlcmd("import", "all.tar", f"dl://{dataset}-2/", *TEXTS)
    assert dlcmd("find", f"{dataset}-2", "--type", "f").lines == [f"dl://{dataset}-2/train/cat.txt"]
    assert "EROFS" in dlcmd("export", pets, "a.erofs", *TEXTS, exit_code=EXIT_USAGE).stderr


def test_numbers_of_records_do_not_depend_on_filters(dlcmd: Dlcmd, dataset: str) -> None:
    with tarfile.open(dlcmd.folder / "a.tar", "w") as archive:
        for name in ("./a.jpg", "./b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    dlcmd("import", "--name", "{index}{ext}", "a.tar", f"dl://{dataset}/", "--include", "/b.*")
    assert dlcmd("ls", dataset).lines == ["1.txt"]


def test_listings(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("ls", "-R", pets, *TEXTS).lines == ["train/cat.txt"]
    assert dlcmd("ls", f"{pets}/train", "--exclude", "/more").lines == ["cat.txt"]
    total = dlcmd("du", "--json", pets, *TEXTS).summary
    assert (total["files"], total["bytes"]) == (1, 5)
    assert dlcmd("du", "--json", f"{pets}/train", "--exclude", "cat.txt").summary["bytes"] == 4096


def test_comparisons(dlcmd: Dlcmd, pets: str) -> None:
    (dlcmd.folder / "pets" / "none").write_text("now something")
    dlcmd("check", "pets/", f"dl://{pets}/", exit_code=EXIT_PARTIAL)
    dlcmd("check", "pets/", f"dl://{pets}/", "--exclude", "/none")
    dlcmd("tag", "add", f"dl://{pets}", "v1")
    dlcmd("rm", f"dl://{pets}/none")
    dlcmd("diff", f"dl://{pets}@v1", f"dl://{pets}", exit_code=EXIT_PARTIAL)
    assert "no differences in 1 entry" in dlcmd("diff", f"dl://{pets}@v1", f"dl://{pets}", *TEXTS).text


def test_rm_keeps_folders_that_have_something(dlcmd: Dlcmd, pets: str) -> None:
    words = ["rm", "-r", f"dl://{pets}/train", "--exclude", "*.bin"]
    assert dlcmd(*words, "-n", "--json").summary["entries"] == 1
    dlcmd(*words)
    assert dlcmd("ls", "-R", f"dl://{pets}/train").lines == ["train/more/", "train/more/dog.bin"]
    dlcmd("rm", f"dl://{pets}/none", *TEXTS)
    assert "none" in dlcmd("ls", pets).lines
