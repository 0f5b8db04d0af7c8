"""Where sockets, locks and logs lie, and who may enter."""

import os
import stat
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.process.state_dirs import check_private, log_path, make_private, open_private, runtime_folder


def test_sockets_are_of_this_node_and_user() -> None:
    assert runtime_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/dieselfs")
    assert runtime_folder({}) == Path(f"/tmp/dieselfs-{os.getuid()}")


def test_a_log_is_named_after_what_the_daemon_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert log_path("mount", "mnt-image net") == Path("/state/dieselfs/mount-mnt-image net.log")
    assert log_path("cache", "imagenet", "train") == Path("/state/dieselfs/cache-imagenet-train.log")
    assert len(log_path("mount", "x" * 4096).name) < 255
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert log_path("mount", "mnt") == Path("/home/me/.local/state/dieselfs/mount-mnt.log")


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    check_private(tmp_path)
    tmp_path.chmod(0o710)
    with pytest.raises(AccessDenied, match="0700"):
        check_private(tmp_path)
    tmp_path.chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(AccessDenied):
        check_private(tmp_path / "link")


def test_a_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "dieselfs"
    make_private(folder)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700, (
        "it may be the private folder of another daemon"
    )
    folder.chmod(0o755)
    with pytest.raises(AccessDenied, match="0700"):
        make_private(folder)


def test_a_log_is_appended_to_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "log"
    for line in (b"one", b"two"):
        with open(open_private(path), "ab") as file:
            file.write(line)
    assert path.read_bytes() == b"onetwo"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        open_private(tmp_path / "log")
    assert not (tmp_path / "target").exists()
