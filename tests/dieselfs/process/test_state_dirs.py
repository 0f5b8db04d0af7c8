"""Where sockets, locks and logs lie, and who may enter."""

import os
import stat
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.process import state_dirs
from dieselfs.process.state_dirs import check_private, log_path, make_private, open_private, runtime_folder


def test_sockets_are_of_this_node_and_user() -> None:
    assert runtime_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/dieselfs")
    assert runtime_folder({}) == Path(f"/tmp/dieselfs-{os.getuid()}")


def test_a_folder_that_another_user_made_first_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a link; and it denies nothing. To root in a user namespace, that of root outside is another user's."""
    shared, logins, user = tmp_path / "tmp", tmp_path / "user", 1234
    monkeypatch.setattr(state_dirs, "_SHARED", shared)
    monkeypatch.setattr(state_dirs, "_LOGINS", logins)
    owners = {shared / f"dieselfs-{user}": 1235, logins / f"{user}": user}
    monkeypatch.setattr(state_dirs, "_owner", owners.get)
    monkeypatch.setattr(os, "getuid", lambda: user)
    assert runtime_folder({}) == logins / f"{user}/dieselfs"
    del owners[logins / f"{user}"]
    assert runtime_folder({"XDG_STATE_HOME": "/proc/none"}) == shared / f"dieselfs-{user}", (
        "it is refused later"
    )
    owners[shared / f"dieselfs-{user}"] = user
    assert runtime_folder({}) == shared / f"dieselfs-{user}"


def test_all_processes_of_a_user_find_the_same_random_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dirs, "_SHARED", tmp_path)
    link = tmp_path / "state/dieselfs/runtime-node"
    folder = state_dirs._random_folder(link)
    make_private(folder)
    assert state_dirs._random_folder(link) == folder != link
    folder.rmdir()  # the node was started again
    again = state_dirs._random_folder(link)
    check_private(again)
    assert again != folder and again.name.startswith(f"dieselfs-{os.getuid()}-")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_each_folder_above_is_checked(tmp_path: Path) -> None:
    """One of another user, in a folder that all may write, could be exchanged at any time."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "own").mkdir(mode=0o700)
    make_private(shared / "own/metrics")
    (shared / "strange").mkdir()
    (shared / "link").symlink_to("own")
    for name in ("strange", "link"):
        os.chown(shared / name, 1234, 1234, follow_symlinks=False)
        with pytest.raises(AccessDenied, match=r"belongs to another user.*XDG_RUNTIME_DIR"):
            make_private(shared / name / "metrics/deep")
    assert not (shared / "strange/metrics").exists()


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
