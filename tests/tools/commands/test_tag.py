"""dlcmd tag: a generation that is kept, and read by its name."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_a_tag_keeps_what_is_changed_and_purged_later(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("tag", "add", "-n", f"dl://{pets}", "v1").text.startswith("would tag")
    made = dlcmd("tag", "add", "--json", f"dl://{pets}", "v1").summary
    assert (made["tag"], made["files"]) == ("v1", 3)
    dlcmd("rm", "-r", "-y", f"dl://{pets}/train")
    dlcmd("purge", "--grace", "0", f"dl://{pets}")
    tagged = f"dl://{pets}@v1"
    assert dlcmd("cat", f"{tagged}/train/cat.txt").stdout == b"xxxxx"
    assert dlcmd("ls", f"{tagged}/train").lines == ["cat.txt", "more/"]
    assert dlcmd("stat", "--json", f"{tagged}/train/cat.txt").objects[0]["size"] == 5
    assert dlcmd("du", "--json", tagged).summary["files"] == 3
    assert "cat.txt" in dlcmd("shuffle", tagged).text
    dlcmd("get", "-r", "-q", f"{tagged}/train", "back")
    assert (dlcmd.folder / "back" / "train" / "cat.txt").read_bytes() == b"xxxxx"
    assert dlcmd("tag", "ls", f"dl://{pets}").lines[0].endswith("v1")
    dlcmd("tag", "rm", f"dl://{pets}", "v1")
    dlcmd("cat", f"{tagged}/train/cat.txt", exit_code=EXIT_NOT_FOUND)
    assert dlcmd("tag", "ls", "--json", f"dl://{pets}").summary["tags"] == 0


def test_what_a_tag_names_cannot_be_changed(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("tag", "add", f"dl://{pets}", "v1")
    dlcmd("tag", "add", f"dl://{pets}", "v1", exit_code=EXIT_USAGE)
    (dlcmd.folder / "new").write_text("x")
    for words in (("put", "new", f"dl://{pets}@v1/"), ("rm", "-y", f"dl://{pets}@v1/none")):
        refused = dlcmd(*words, exit_code=EXIT_USAGE)
        assert "cannot be changed" in refused.stderr
