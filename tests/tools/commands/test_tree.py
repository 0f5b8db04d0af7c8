"""dlcmd tree: the drawing shows each entry below its folder."""

import subprocess

from dieselfs.errors import EXIT_NOT_FOUND
from tests.support.dlcmd import Dlcmd

DRAWING = """\
dl://{}/
├── empty/
├── latest
├── none
└── train/
    ├── cat.txt
    └── more/
        └── dog.bin
3 folders, 4 files
"""


def test_everything(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("tree", pets).text == DRAWING.format(pets)


def test_levels_and_folders(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("tree", "-q", "-d", pets).lines == ["├── empty/", "└── train/", "    └── more/"]
    assert dlcmd("tree", "-q", "-L", "1", f"dl://{pets}/train").lines == ["├── cat.txt", "└── more/"]
    assert dlcmd("tree", "-d", pets).lines[-1] == "3 folders"
    dlcmd("tree", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)


def test_an_output_without_lines_gets_ascii(dlcmd: Dlcmd, pets: str) -> None:
    plain = Dlcmd(dlcmd.home, dlcmd.folder, {"PYTHONIOENCODING": "ascii"})
    process = plain.start("tree", "-q", f"dl://{pets}/train", stdout=subprocess.PIPE)
    drawing = process.communicate(timeout=60)[0]
    assert drawing.split(b"\n")[:-1] == [b"|-- cat.txt", b"`-- more/", b"    `-- dog.bin"]


def test_as_json(dlcmd: Dlcmd, pets: str) -> None:
    ran = dlcmd("tree", "--json", "-d", pets)
    assert [one["path"] for one in ran.objects] == ["empty", "train", "train/more"]
    assert ran.summary["folders"] == 3


def test_folders_nested_as_deep_as_the_limit(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "file").touch()
    dlcmd("put", "file", f"dl://{dataset}/{'d/' * 127}")
    assert dlcmd("tree", "-d", dataset).lines[-1] == "127 folders"
