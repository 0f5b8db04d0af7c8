"""Files with secrets: who may have them, and how they are replaced."""

import os
import stat
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.private_file import file_version, read_private_file, write_private_file
from tests.support.users import NOBODY

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")


def private(path: Path, content: bytes = b"secret") -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_private_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    assert read_private_file(private(tmp_path / "key"), 3, "key file") == b"sec"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "key")
    path.chmod(mode)
    with pytest.raises(AccessDenied, match=f"key file {path} can be read by others: chmod 600"):
        read_private_file(path, 100, "key file")


@ROOT_ONLY
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = private(tmp_path / "key")
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(AccessDenied, match="belongs to another user"):
        read_private_file(path, 100, "key file")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    for name in ("fifo", "folder", "missing"):
        with pytest.raises(AccessDenied, match=name):
            read_private_file(tmp_path / name, 100, "key file")


def test_a_file_is_replaced_as_a_whole_and_its_version_changes(tmp_path: Path) -> None:
    path = private(tmp_path / "key")
    before = file_version(path)
    with path.open("rb") as old:
        write_private_file(path, b"new")
        assert (old.read(), path.read_bytes()) == (b"secret", b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file_version(path) != before
    assert sorted(tmp_path.iterdir()) == [path]
    assert file_version(tmp_path / "missing") == ()
