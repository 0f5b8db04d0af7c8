"""dlcmd cat: the content of files, all of it, to whoever reads it."""

import os
import signal
import subprocess

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from dieselfs.limits import MIB
from tests.support.dlcmd import Dlcmd


def test_files_come_one_behind_the_other(dlcmd: Dlcmd, pets: str) -> None:
    pair = (f"dl://{pets}/latest", f"dl://{pets}/train/more/dog.bin")
    content = b"x" * (5 + 4096)
    assert dlcmd("cat", *pair).stdout == dlcmd("get", *pair, "-").stdout == content
    assert dlcmd("cat", f"dl://{pets}/none").stdout == b""


def test_nothing_comes_if_one_of_them_is_missing(dlcmd: Dlcmd, pets: str) -> None:
    first = f"dl://{pets}/latest"
    assert dlcmd("cat", first, f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND).stdout == b""
    assert dlcmd("cat", first, f"dl://{pets}/train", exit_code=EXIT_USAGE).stdout == b""
    assert (
        "--json and the content of files cannot" in dlcmd("cat", "--json", first, exit_code=EXIT_USAGE).stderr
    )


@pytest.mark.parametrize("is_unbuffered", [False, True])
def test_a_large_file_comes_whole(dlcmd: Dlcmd, dataset: str, is_unbuffered: bool) -> None:
    content = os.urandom(9 * MIB + 1)
    (dlcmd.folder / "large").write_bytes(content)
    dlcmd("put", "large", f"dl://{dataset}/")
    variables = {"PYTHONUNBUFFERED": "1"} if is_unbuffered else {}
    process = Dlcmd(dlcmd.home, dlcmd.folder, variables).start(
        "cat", f"dl://{dataset}/large", stdout=subprocess.PIPE
    )
    assert process.communicate(timeout=60)[0] == content
    assert process.returncode == 0


def test_a_closed_pipe_ends_it_silently(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "large").write_bytes(bytes(3 << 20))
    dlcmd("put", "large", f"dl://{dataset}/")
    process = dlcmd.start("cat", f"dl://{dataset}/large", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(10) == bytes(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 128 + signal.SIGPIPE
