"""The parts of `make release` that try an installation, with the one that the tests use."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

import release


@pytest.mark.processes
def test_an_installation_stores_reads_back_and_mounts(tmp_path: Path) -> None:
    release.try_out(Path(sys.executable), tmp_path)


@pytest.mark.parametrize(
    "lost",
    [
        "share/man/man1/dlcmd-put.1",
        "share/bash-completion/completions/dlcmd",
        "share/zsh/site-functions/_dlcmd",
        "share/fish/vendor_completions.d/dlcmd.fish",
        "share/dieselfs/systemd/dieselfs-server.service",
    ],
)
def test_a_file_that_a_wheel_lacks_is_named(lost: str, tmp_path: Path) -> None:
    settings = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for place, patterns in settings["data-files"].items():
        (tmp_path / place).mkdir(parents=True)
        for pattern in patterns:
            for path in release.ROOT.glob(pattern):
                shutil.copy(path, tmp_path / place)
    release.check_files(tmp_path)
    (tmp_path / lost).write_text("old")
    with pytest.raises(SystemExit, match=lost):
        release.check_files(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(SystemExit, match=lost):
        release.check_files(tmp_path)
