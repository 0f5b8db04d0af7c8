"""The manual pages and completion scripts of the wheel are those of the commands, and `man` accepts them."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from dieselfs_tools.cli.command_line import VERBS
from tests.support.documents import REPOSITORY
from tests.support.manual_pages import files, markdown


def test_they_are_made_from_the_commands() -> None:
    wanted = files()
    written = {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
        for folder in ("man", "completions")
        for path in (REPOSITORY / folder).iterdir()
    }
    stale = sorted(name for name in wanted.keys() | written.keys() if wanted.get(name) != written.get(name))
    assert not stale, "write them again: python -m tests.support.manual_pages"
    assert {f"man/dlcmd-{verb}.1" for verb in VERBS} < wanted.keys()


def test_the_wheel_has_all_of_them() -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["data-files"]
    packed = {
        str(path.relative_to(REPOSITORY))
        for target, globs in folders.items()
        if not target.startswith("share/dieselfs")  # tests/repository/test_deploy.py
        for glob in globs
        for path in REPOSITORY.glob(glob)
    }
    assert packed == set(files())
    assert {Path(name).suffix for name in packed if name.startswith("man/")} == {".1"}


@pytest.mark.parametrize("program", ["man", "lexgrog"])
def test_pages_are_clean(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    pages = sorted((REPOSITORY / "man").iterdir())
    options = ["--warnings", "-E", "UTF-8", "-l"] if program == "man" else []
    ran = subprocess.run(
        [program, *options, *pages],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
    )
    assert ran.stderr == ""
    if program == "man":
        assert "store files and folders in a dataset" in ran.stdout
    else:  # what `apropos` finds
        assert len(ran.stdout.splitlines()) == len(pages)


def test_the_guide_as_roff() -> None:
    table, code = "| a | b |\n| --- | --- |\n| `-c` | d |\n", "```sh\n.x\n```\n"
    assert list(markdown(f"A `x -y` [link](a.md).\n\n* one\n  line\n* two\n\n{table}\n{code}")) == [
        ".PP",
        "A \\fBx \\-y\\fP link.",
        ".IP \\(bu 2",
        "one line",
        ".IP \\(bu 2",
        "two",
        ".TP",
        ".B \\fB\\-c\\fP",
        "d",
        ".PP",
        ".nf",
        ".RS",
        "\\&.x",
        ".RE",
        ".fi",
    ]
