"""dlcmd head: as many lines or bytes as there are, of each file."""

import os

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from dieselfs.limits import MIB
from tests.support.dlcmd import Dlcmd


def test_lines_and_bytes(dlcmd: Dlcmd, dataset: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(20))
    large = os.urandom(9 * MIB)
    (dlcmd.folder / "lines").write_bytes(lines)
    (dlcmd.folder / "large").write_bytes(large)
    dlcmd("put", "lines", "large", f"dl://{dataset}/")
    place = f"dl://{dataset}/lines"
    assert dlcmd("head", place).stdout == b"".join(lines.splitlines(True)[:10])
    assert dlcmd("head", "-n", "2", place, place).stdout == b"line 0\nline 1\n" * 2
    assert dlcmd("head", "-n", "99", place).stdout == lines
    assert dlcmd("head", "-c", "5M", f"dl://{dataset}/large").stdout == large[: 5 * MIB]
    assert dlcmd("head", "-n", "0", place).stdout == dlcmd("head", "-c", "0", place).stdout == b""


def test_bad_input(dlcmd: Dlcmd, pets: str) -> None:
    file = f"dl://{pets}/none"
    assert dlcmd("head", file).stdout == b""
    assert "not both" in dlcmd("head", "-n", "1", "-c", "1", file, exit_code=EXIT_USAGE).stderr
    assert "not a file" in dlcmd("head", f"dl://{pets}/train", exit_code=EXIT_USAGE).stderr
    assert dlcmd("head", file, f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND).stdout == b""
