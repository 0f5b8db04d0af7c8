"""The commit that a kept run names."""

import subprocess
from pathlib import Path

from bench.__main__ import commit_of
from bench.harness.journal import is_dirty


def test_rounds_that_a_run_wrote_before_do_not_make_the_source_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    source, rounds = tmp_path / "source.py", tmp_path / "docs" / "rounds.json"
    rounds.parent.mkdir()
    for file in (source, rounds):
        file.write_text("first")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    rounds.write_text("second")
    assert not is_dirty({"commit": commit_of(tmp_path)})
    source.write_text("second")
    assert is_dirty({"commit": commit_of(tmp_path)})


def test_a_folder_without_git_has_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""
