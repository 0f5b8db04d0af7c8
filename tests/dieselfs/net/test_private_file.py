"""Files with secrets: who may have them, and how they are replaced."""

import os
import stat
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.net.private_file import file_version, read_private_file, write_private_file
from tests.support.users import NOBODY, acting_as

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
@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o640, True), (0o460, False), (0o444, False)])
def test_root_may_let_the_group_of_a_process_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_read: bool
) -> None:
    """As Kubernetes mounts a secret for a program that is not root."""
    path = private(tmp_path / "key")
    os.chown(path, 0, NOBODY)
    path.chmod(mode)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the folders above are closed
    with acting_as(NOBODY):
        if is_read:
            assert read_private_file("key", 100, "key file") == b"secret"
        else:
            with pytest.raises(AccessDenied, match="key file key can be read by others"):
                read_private_file("key", 100, "key file")


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
