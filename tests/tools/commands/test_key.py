"""dlcmd key: recipients of an encrypted dataset come and go, its chunks stay as they are."""

from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


@pytest.fixture
def anna(tmp_path: Path) -> Dlcmd:
    (tmp_path / "anna").mkdir()
    (tmp_path / "source").mkdir()
    (tmp_path / "source/f").write_bytes(b"text")
    run = Dlcmd(tmp_path / "home", tmp_path / "anna")
    run("put", "-r", "--encrypt", f"{tmp_path}/source/", "dl://mri/")
    return run


def user(anna: Dlcmd, name: str) -> tuple[Dlcmd, Path]:
    """Another user of the same store, and the file with the public key."""
    folder = anna.folder.parent / name
    folder.mkdir()
    run, file = Dlcmd(anna.home, folder), folder / "public"
    public = run("key", "show", "--json").objects[0]["recipient"].split()
    file.write_text(f"dieselfs-recipient {name} {public[2]}\n")
    return run, file


def chunks(anna: Dlcmd) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (anna.home / "chunks").rglob("*") if path.suffix}


def test_who_was_added_reads_and_who_was_removed_does_not(anna: Dlcmd) -> None:
    before = chunks(anna)
    bert, file = user(anna, "bert")
    assert "not wrapped for you" in bert("ls", "dl://mri", exit_code=EXIT_REFUSED).stderr
    assert anna("key", "add", "dl://mri", file).lines == ["bert can read dl://mri"]
    assert bert("cat", "dl://mri/f").stdout == b"text"
    (bert.folder / "g").write_bytes(b"more")
    bert("put", bert.folder / "g", "dl://mri/")
    assert anna("cat", "dl://mri/g").stdout == b"more"
    anna("key", "rm", "dl://mri", "bert")
    assert "not wrapped for you" in bert("cat", "dl://mri/f", exit_code=EXIT_REFUSED).stderr
    assert before.items() <= chunks(anna).items()


def test_a_group_is_added_and_removed_as_one(anna: Dlcmd) -> None:
    members = [user(anna, name) for name in ("bert", "cleo")]
    file = anna.folder / "group"
    file.write_text("".join(path.read_text() for _, path in members))
    anna("key", "add", "--group", "vision", "dl://mri", file)
    listed = anna("key", "ls", "--json", "dl://mri")
    assert [one["name"] for one in listed.objects][1:] == ["vision/bert", "vision/cleo"]
    assert members[1][0]("cat", "dl://mri/f").stdout == b"text"
    anna("key", "rm", "dl://mri", "vision/cleo")
    members[1][0]("cat", "dl://mri/f", exit_code=EXIT_REFUSED)
    anna("key", "rm", "dl://mri", "vision")
    members[0][0]("cat", "dl://mri/f", exit_code=EXIT_REFUSED)


def test_a_passphrase_opens_the_dataset(anna: Dlcmd, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("correct horse\n")
    file.chmod(0o600)
    with_it = {"DIESELFS_PASSPHRASE_FILE": str(file)}
    assert (
        "give the file" in anna("key", "add", "--passphrase", "safe", "dl://mri", exit_code=EXIT_USAGE).stderr
    )
    Dlcmd(anna.home, anna.folder, with_it)("key", "add", "--passphrase", "safe", "dl://mri")
    (tmp_path / "dora").mkdir()
    dora = Dlcmd(anna.home, tmp_path / "dora", with_it)
    assert dora("cat", "dl://mri/f").stdout == b"text"


def test_mistakes_are_one_line(anna: Dlcmd, tmp_path: Path) -> None:
    _, file = user(anna, "bert")
    anna("key", "add", "dl://mri", file)
    other = tmp_path / "other"
    other.write_text(
        file.read_text().replace(file.read_text().split()[2], "B6N8vBQgk8i3VdwbEOhstCY3StFqqFPtC9_AsrhtHHw")
    )
    for arguments, exit_code, message in (
        (["add", "dl://mri", other], EXIT_USAGE, "has another key; -f replaces it"),
        (["add", "dl://mri", tmp_path / "none"], EXIT_NOT_FOUND, "No such file"),
        (["add", "dl://mri", tmp_path / "source/f"], EXIT_USAGE, "is no recipient"),
        (["add", "dl://mri"], EXIT_USAGE, "give a FILE"),
        (["add", "--group", "a/b", "dl://mri", file], EXIT_USAGE, "not allowed"),
        (["rm", "dl://mri", "nobody"], EXIT_NOT_FOUND, "no recipient nobody"),
        (["rm", "dl://mri", "bert", anna("key", "show").text.split()[1]], EXIT_USAGE, "dlcmd erase"),
        (["ls", "dl://none"], EXIT_NOT_FOUND, "no dataset"),
    ):
        assert message in anna("key", *arguments, exit_code=exit_code).stderr
    anna("key", "add", "-f", "dl://mri", other)
    anna("put", "-r", f"{tmp_path}/source/", "dl://plain/")
    assert "is not encrypted" in anna("key", "ls", "dl://plain", exit_code=EXIT_USAGE).stderr
