"""All metadata is lost: `ls` names the datasets that are in the store, and `rebuild --all` restores them."""

from pathlib import Path

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_USAGE
from tests.support.dlcmd import Dlcmd
from tests.support.server import running_server


def test_datasets_are_found_and_restored_without_a_known_name(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    (tmp_path / "f").write_bytes(b"content")
    with running_server(folder) as server:
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        for name in ("ants", "bees"):
            dlcmd("put", "f", f"dl://{name}/")
        dlcmd("tag", "add", "ants", "v1")
    for leftover in folder.glob("metadata.db*"):
        leftover.unlink()
    with running_server(folder) as server:
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        listed = dlcmd("ls", exit_code=EXIT_DAMAGED)
        assert "no datasets" not in listed.text
        assert (
            "dl://ants/: its metadata is lost" in listed.stderr and "dlcmd rebuild dl://bees" in listed.stderr
        )
        assert dlcmd("ls", "--json", exit_code=EXIT_DAMAGED).summary["lost"] == ["ants", "bees"]
        checked = dlcmd("fsck", "--all", exit_code=EXIT_DAMAGED)  # a timer notices
        assert "dlcmd rebuild dl://ants" in checked.stderr and "checked 2 datasets" in checked.text
        dlcmd("rebuild", "--all", "dl://ants", exit_code=EXIT_USAGE)
        dlcmd("rebuild", exit_code=EXIT_USAGE)
        assert dlcmd("rebuild", "--all", "-n").text.endswith("would rebuild 2 datasets\n")
        assert "rebuilt ants from 1 chunk: 1 file" in dlcmd("rebuild", "--all").text
        assert dlcmd("ls", exit_code=EXIT_OK).lines == ["dl://ants/", "dl://bees/"]
        assert dlcmd("cat", "dl://ants@v1/f").stdout == dlcmd("cat", "dl://bees/f").stdout == b"content"
        reader = server.user("reads", bees="read")
        own = Dlcmd(
            tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(reader)}
        )
        assert own("ls").lines == ["dl://bees/"]
