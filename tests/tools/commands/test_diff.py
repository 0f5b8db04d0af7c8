"""dlcmd diff: tags and folders are compared by content, however it is stored."""

import os

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from dieselfs.limits import MIB
from tests.support.dlcmd import Dlcmd


def test_two_tags(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("tag", "add", f"dl://{pets}", "v1")
    (dlcmd.folder / "pets/none").write_bytes(b"changed")
    (dlcmd.folder / "pets/train/cat.txt").chmod(0o600)
    (dlcmd.folder / "pets/new").touch()
    dlcmd("put", "-r", "pets/", f"dl://{pets}/")
    dlcmd("rm", f"dl://{pets}/train/more/dog.bin")
    ran = dlcmd("diff", f"dl://{pets}@v1", pets, exit_code=EXIT_PARTIAL)
    assert ran.lines == [
        "+ new",
        "* none",
        "~ train/cat.txt",
        "- train/more/dog.bin",
    ]
    assert "4 differences: 1 added, 1 removed, 1 changed, 1 attributes" in ran.stderr
    below = dlcmd("diff", "--json", f"dl://{pets}@v1/train", f"dl://{pets}/train", exit_code=EXIT_PARTIAL)
    assert [(one["change"], one["path"]) for one in below.objects] == [
        ("attributes", "cat.txt"),
        ("removed", "more/dog.bin"),
    ]
    assert below.summary["removed"] == 1 and below.summary["added"] == 0
    assert dlcmd("diff", f"dl://{pets}@v1", f"dl://{pets}@v1").lines == ["no differences in 7 entries"]


def test_a_large_file_in_other_parts_is_read(dlcmd: Dlcmd, dataset: str) -> None:
    content = os.urandom(3 * MIB)
    for name, parts in (("one", content), ("two", content), ("other", content[:-1] + b"x")):
        (dlcmd.folder / name).mkdir()
        (dlcmd.folder / name / "large").write_bytes(parts)
        os.utime(dlcmd.folder / name / "large", ns=(0, 0))
    dlcmd("put", "-r", "one", f"dl://{dataset}/")
    dlcmd("put", "-r", "--chunk-size", "1M", "two", "other", f"dl://{dataset}/")
    one = f"dl://{dataset}/one"
    assert dlcmd("diff", one, f"dl://{dataset}/two").lines == ["no differences in 1 entry"]
    assert dlcmd("diff", one, f"dl://{dataset}/other", exit_code=EXIT_PARTIAL).lines[0] == "* large"


def test_bad_input(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("diff", pets, f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)
    assert "is not a folder" in dlcmd("diff", pets, f"dl://{pets}/none", exit_code=EXIT_USAGE).stderr
