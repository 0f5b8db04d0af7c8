"""Completion, in a real bash and through what the scripts of all shells ask."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dieselfs_tools.cli.completion import SCRIPTS, TIMEOUT_S
from tests.support.dlcmd import Dlcmd

_PRESS_TAB = """
set -eu
source "$SCRIPT"
COMP_LINE=$LINE
COMP_POINT=${#LINE}
_dlcmd dlcmd "$WORD" "" || true
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bin_folder(dlcmd: Dlcmd) -> Path:
    """A folder with a program dlcmd."""
    folder = dlcmd.folder / "bin"
    folder.mkdir()
    program = folder / "dlcmd"
    program.write_text(f"#!{sys.executable}\nfrom dieselfs_tools.dlcmd import main\nmain()\n")
    program.chmod(0o755)
    return folder


def in_bash(dlcmd: Dlcmd, bin_folder: Path, line: str) -> list[str]:
    """What bash offers for a line, with the words split as bash splits them."""
    script = dlcmd.folder / "completion.bash"
    script.write_text(SCRIPTS["bash"])
    word = re.split("[ :@]", line)[-1]
    environment = {**dlcmd.environment(), "SCRIPT": str(script), "LINE": line, "WORD": word}
    environment["PATH"] = f"{bin_folder}{os.pathsep}{environment['PATH']}"
    bash = shutil.which("bash")
    assert bash is not None
    ran = subprocess.run(
        [bash, "--norc", "-c", _PRESS_TAB],
        env=environment,
        cwd=dlcmd.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0 and ran.stderr == "", ran
    return ran.stdout.splitlines()


def asked(dlcmd: Dlcmd, line: str, **variables: str) -> list[str]:
    """What the scripts of all shells ask for."""
    environment = {**dlcmd.environment(), "_DLCMD_COMPLETE": line, **variables}
    ran = subprocess.run(
        [sys.executable, "-m", "dieselfs_tools.dlcmd", line.rpartition(" ")[2]],
        env=environment,
        cwd=dlcmd.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0 and ran.stderr == "", ran
    return ran.stdout.splitlines()


def test_bash_completes_verbs_datasets_and_paths(dlcmd: Dlcmd, bin_folder: Path) -> None:
    folder = dlcmd.folder / "tree" / "train set"
    folder.mkdir(parents=True)
    (folder / "cat.jpg").touch()
    (dlcmd.folder / "tree" / "trains.csv").touch()
    dlcmd("put", "-r", "tree/", "dl://completed-here/")
    assert in_bash(dlcmd, bin_folder, "dlcmd mou") == ["mount", "mounts"]
    # bash has split the word at the colon, and replaces only what is behind it
    assert in_bash(dlcmd, bin_folder, "dlcmd ls dl://completed-h") == ["//completed-here/"]
    assert in_bash(dlcmd, bin_folder, "dlcmd ls completed-h") == ["dl://completed-here/"]
    tra = in_bash(dlcmd, bin_folder, "dlcmd ls dl://completed-here/tra")
    assert tra == ["//completed-here/train\\ set/", "//completed-here/trains.csv"]
    assert in_bash(dlcmd, bin_folder, "dlcmd ls dl://completed-here/x") == [""]
    assert in_bash(dlcmd, bin_folder, "dlcmd mount completed-h") == ["completed-here"]
    assert "--recursive" in in_bash(dlcmd, bin_folder, "dlcmd put --re")


def test_tags_files_and_choices(dlcmd: Dlcmd, bin_folder: Path) -> None:
    (dlcmd.folder / "f").touch()
    dlcmd("put", "f", "dl://tagged-here/")
    dlcmd("tag", "add", "dl://tagged-here", "v1")
    assert in_bash(dlcmd, bin_folder, "dlcmd mount tagged-here@") == ["v1"]
    assert asked(dlcmd, "dlcmd tag rm dl://tagged-here ") == ["v1"]
    assert asked(dlcmd, "dlcmd mount tagged-here@") == ["tagged-here@v1"]
    assert asked(dlcmd, "dlcmd put f") == ["file"]
    assert asked(dlcmd, "dlcmd get dl://tagged-here/") == ["dl://tagged-here/f"]
    assert asked(dlcmd, "dlcmd mount --driver k") == ["kernel"]
    assert asked(dlcmd, "dlcmd completion z") == ["zsh"]
    assert asked(dlcmd, "dlcmd umount /no/such") == []
    assert asked(dlcmd, "dlcmd ls 'dl://open") == []


def test_a_server_that_does_not_answer_is_not_waited_for(dlcmd: Dlcmd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        started_s = time.monotonic()
        assert asked(dlcmd, "dlcmd ls dl://", DIESELFS_SERVER=address) == []
        assert time.monotonic() - started_s < TIMEOUT_S + 20
    assert asked(dlcmd, "dlcmd ls dl://", DIESELFS_SERVER=address) == []


def test_no_home_is_made_to_complete_a_word(dlcmd: Dlcmd) -> None:
    home = dlcmd.folder / "not-there"
    assert asked(dlcmd, "dlcmd ls dl://", DIESELFS_HOME=str(home)) == []
    assert not home.exists()


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_scripts_are_printed_and_are_valid(dlcmd: Dlcmd, shell: str) -> None:
    script = dlcmd("completion", shell).text
    assert script == SCRIPTS[shell]
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=60)
