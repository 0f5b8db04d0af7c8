"""Root finds the sockets of the daemons of all users, and no user can lead it astray or block it."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dieselfs.process.node_sockets import SOCKETS_MAX, DaemonSocket, is_for_all_users, node_sockets
from dieselfs.telemetry import socket as metrics_socket
from dieselfs.telemetry.socket import published

JOBS, TEMPORARY = "/jobs/*/dieselfs", "/tmp/dieselfs-*"
HANG_S = 10.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


@pytest.fixture
def listening() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def metrics_folder(root: Path, place: str) -> Path:
    folder = root / place / "metrics"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def listen(listening: ExitStack, path: Path) -> None:
    listener = listening.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen()


def found(root: Path, *patterns: str) -> list[int]:
    return [each.process for each in node_sockets(patterns or (JOBS, TEMPORARY), root)]


def test_sockets_of_all_folders_are_found_and_can_be_reached(tmp_path: Path, listening: ExitStack) -> None:
    assert found(tmp_path) == []
    for number, place in enumerate(("jobs/1/dieselfs", "jobs/2/dieselfs", f"tmp/dieselfs-{os.getuid()}")):
        listen(listening, metrics_folder(tmp_path, place) / f"{number + 7}.sock")
    for name in ("x.sock", "07.sock", "7.txt"):
        listen(listening, tmp_path / "jobs/1/dieselfs/metrics" / name)
    (tmp_path / "jobs/1/dieselfs/metrics/5.sock").touch()  # no socket
    assert found(tmp_path) == [7, 8, 9]
    before = os.listdir("/proc/self/fd")
    for each in node_sockets((JOBS, TEMPORARY), tmp_path):
        with socket.socket(socket.AF_UNIX) as tool:
            tool.connect(each.path)
        assert each.user == os.getuid()
    assert os.listdir("/proc/self/fd") == before


def test_links_are_not_followed(tmp_path: Path, listening: ExitStack) -> None:
    elsewhere = metrics_folder(tmp_path, "elsewhere/dieselfs")
    listen(listening, elsewhere / "7.sock")
    (metrics_folder(tmp_path, "jobs/1/dieselfs") / "8.sock").symlink_to(elsewhere / "7.sock")
    for place in ("jobs/2/dieselfs", "jobs/3"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "jobs/2/dieselfs/metrics").symlink_to(elsewhere)
    (tmp_path / "jobs/3/dieselfs").symlink_to(elsewhere.parent)
    (tmp_path / "jobs/4").symlink_to(elsewhere.parent.parent)
    assert found(tmp_path) == []
    assert found(tmp_path, "/elsewhere/dieselfs") == [7]


def test_folders_that_others_can_enter_or_have_made_are_left_out(
    tmp_path: Path, listening: ExitStack
) -> None:
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    listen(listening, folder / "7.sock")
    folder.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    other = metrics_folder(tmp_path, f"tmp/dieselfs-{os.getuid() + 1}")  # in the name of another user
    listen(listening, other / "8.sock")
    assert found(tmp_path) == []


@needs_root
def test_folders_of_two_owners_are_left_out(tmp_path: Path, listening: ExitStack) -> None:
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    listen(listening, folder / "7.sock")
    for path in (tmp_path / "jobs/1", folder.parent, folder, folder / "7.sock"):
        assert found(tmp_path) == ([7] if path == tmp_path / "jobs/1" else [])
        os.chown(path, 1234, 1234)
    assert [each.user for each in node_sockets((JOBS,), tmp_path)] == [1234]
    os.chown(folder.parent, 1235, 1235)
    assert found(tmp_path) == []


def test_a_folder_with_too_many_sockets_takes_no_longer(tmp_path: Path) -> None:
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    for number in range(SOCKETS_MAX + 10):
        os.mknod(folder / f"{number + 1}.sock", 0o140600)
    assert len(found(tmp_path)) == SOCKETS_MAX


@contextmanager
def hanging_mount(place: Path) -> Iterator[None]:
    """A file system of FUSE that answers nothing, until the end of the block or HANG_S."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40700,user_id=0,group_id=0,allow_other"
    command = ["mount", "--internal-only", "-t", "fuse", "-o", options, "hanging", str(place)]
    mounted = subprocess.run(command, pass_fds=[device], capture_output=True, check=False)
    if mounted.returncode != 0:
        os.close(device)
        pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
    release = threading.Timer(HANG_S, os.close, [device])
    release.start()
    try:
        yield
        assert release.is_alive(), "it was blocked by a file system that does not answer"
    finally:
        if release.is_alive():
            release.cancel()
            os.close(device)
        subprocess.run(["umount", "--internal-only", "--lazy", str(place)], check=True)


@needs_root
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs /dev/fuse")
@pytest.mark.parametrize("place", ["jobs/1", "jobs/1/dieselfs", "jobs/1/dieselfs/metrics"])
def test_a_file_system_of_a_user_blocks_nobody(tmp_path: Path, place: str) -> None:
    metrics_folder(tmp_path, "jobs/1/dieselfs")
    with hanging_mount(tmp_path / place):
        assert found(tmp_path) == []


def test_an_own_folder_of_sockets_keeps_daemons_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, runtime, is_for_all in (
        (0, None, True),
        (0, "/run/user/0", True),
        (0, "/run", True),
        (0, "/scratch", False),
        (7, "/run/user/7", False),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if runtime is not None:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert is_for_all_users() == is_for_all


SERVE = """
import json, os, sys, socket
listener = socket.socket(socket.AF_UNIX)
path = sys.argv[1] + "/" + (sys.argv[2] or str(os.getpid())) + ".sock"
listener.bind(path)
listener.listen()
print(flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        while connection.recv(100):
            pass
        connection.sendall(json.dumps({"about": {"component": "mount"}, "families": []}).encode())
"""


@contextmanager
def daemon_of(user: int, folder: Path, name: str = "") -> Iterator[int]:
    command = ["python3", "-c", SERVE, str(folder), name]
    with subprocess.Popen(command, user=user, stdout=subprocess.PIPE) as daemon:
        try:
            assert daemon.stdout is not None and daemon.stdout.readline() == b"\n"
            yield daemon.pid
        finally:
            daemon.kill()


@needs_root
def test_root_hears_daemons_of_others_that_say_who_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`1`: in the name of another process."""
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    for path in (tmp_path / "jobs/1", folder.parent, folder):
        os.chown(path, 1234, 1234)

    def sockets() -> Iterator[DaemonSocket]:
        yield from node_sockets((JOBS,), tmp_path)

    monkeypatch.setattr(metrics_socket, "node_sockets", sockets)
    monkeypatch.setattr(metrics_socket, "is_for_all_users", lambda: True)
    above = [path for path in tmp_path.parents if path.stat().st_mode & 0o001 == 0]
    if above:
        monkeypatch.chdir(folder)
        folder = Path()
    with daemon_of(1234, folder) as process, daemon_of(1234, folder, "1"):
        assert [each for each, _ in published()] == [process]
