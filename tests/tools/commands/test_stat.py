"""dlcmd stat: what is known of a path."""

from dieselfs.errors import EXIT_NOT_FOUND
from tests.support.dlcmd import Dlcmd
from tests.tools.commands.conftest import MTIME_NS


def test_stat_shows_type_size_mode_and_time(dlcmd: Dlcmd, pets: str) -> None:
    lines = dlcmd("stat", f"dl://{pets}/train/more/dog.bin", f"dl://{pets}/latest", f"dl://{pets}").lines
    assert lines[0] == f"dl://{pets}/train/more/dog.bin"
    assert {"  type      file", "  size      4.0 KiB", "  mode      0640 -rw-r-----"} < set(lines)
    assert {"  type      link", "  target    train/cat.txt", "  type      folder"} < set(lines)
    assert any(line.endswith(".123456789") for line in lines)
    (found,) = dlcmd("stat", "--json", f"dl://{pets}/train/cat.txt").objects
    assert found == {
        "type": "entry",
        "dataset": pets,
        "path": "train/cat.txt",
        "kind": "file",
        "size": 5,
        "mode": "0640",
        "mtime_ns": MTIME_NS,
    }
    dlcmd("stat", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)
