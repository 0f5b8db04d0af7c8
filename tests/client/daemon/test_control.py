import mmap
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import InvalidInput, MountError, NotFound, Unavailable
from dieselfs.process.launch import module_environment, python_command, wait_for_end
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.options import MountOptions, format_options
from dieselfs_client.supervision.status import supervision_of
from lab import mount_processes
from tests.client.conftest import FILES
from tests.support.server import RunningServer
from tests.support.supervised import supervisor_and_zygote_run

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@pytest.fixture
def options(options: MountOptions, view: str) -> MountOptions:
    return replace(options, view=view)


def is_alive(process: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listed(mountpoint: Path) -> control.Mount:
    (mount,) = [mount for mount in control.mounts() if mount.mountpoint == str(mountpoint)]
    return mount


def wait_until_stale(mountpoint: Path) -> None:
    """The kernel lets go of the device when the last thread of a killed daemon is gone, not when the first one is."""
    deadline_s = time.monotonic() + 10
    while not listed(mountpoint).is_stale:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_limit_that_is_too_small_is_named_before_anything_starts(
    options: MountOptions, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "room_bytes", lambda: (70 << 20, "the cgroup /job"))
    with pytest.raises(InvalidInput, match="the cgroup /job allows 70 MiB of memory, a mount needs"):
        control.mount("letters", mountpoint, options)
    assert str(mountpoint) not in [mount.mountpoint for mount in control.mounts()]


def test_mount_list_unmount(options: MountOptions, mountpoint: Path) -> None:
    process = control.mount("letters", mountpoint, options)
    for path, content in FILES.items():
        assert (mountpoint / path).read_bytes() == content
    mount = listed(mountpoint)
    assert (mount.dataset, mount.process, mount.is_stale) == ("letters", process, False)
    assert (mount.view, mount.view_reason) == (options.view, "")
    assert os.getsid(process) != os.getsid(0), "Ctrl-C here must not reach it"
    assert os.readlink(f"/proc/{process}/cwd") == "/"
    names = [Path(f"/proc/{one}/comm").read_text().strip() for one in (mount.process, mount.daemon)]
    assert names == ["dieselfs-mount", "dieselfs-daemon"]
    control.unmount(mountpoint)
    assert not is_alive(process)
    assert os.listdir(mountpoint) == []
    assert str(mountpoint) not in [mount.mountpoint for mount in control.mounts()]


def test_a_mount_is_ready_once_the_server_has_its_pin(
    options: MountOptions, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a purge right after the mount could take its chunks."""
    slow = f"""
import time
from dieselfs.rpc.client import ServerClient
original = ServerClient.pin
def pin(*arguments):
    time.sleep(0.3)
    original(*arguments)
    open("{tmp_path}/pinned", "w").close()
ServerClient.pin = pin
"""
    supervisor_and_zygote_run(monkeypatch, in_zygote=slow)
    control.mount("letters", mountpoint, options)
    assert (tmp_path / "pinned").exists()
    control.unmount(mountpoint)


def test_a_mount_holds_no_descriptor_of_ours(options: MountOptions, mountpoint: Path) -> None:
    """Otherwise `dlcmd mount | cat` would wait until the dataset is unmounted."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    saved = os.dup(2)
    os.dup2(writing, 2)
    try:
        control.mount("letters", mountpoint, options)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(writing)
    assert os.read(reading, 100) == b""
    os.close(reading)
    control.unmount(mountpoint)


def test_a_dataset_by_its_location(options: MountOptions, mountpoint: Path) -> None:
    control.mount("dl://letters/", mountpoint, options)
    record = mount_at(str(mountpoint))
    assert record is not None and record.source == "dl://letters"
    assert listed(mountpoint).dataset == "letters"
    control.unmount(mountpoint)


@pytest.mark.parametrize(
    ("dataset", "changes", "error", "text"),
    [
        ("numbers", {}, NotFound, "numbers"),
        ("no name", {}, InvalidInput, "is not allowed"),
        ("letters", {"generation": 99}, NotFound, "generation"),
        ("letters", {"server": "unix:/nowhere/at/all.sock"}, Unavailable, "/nowhere/at/all.sock"),
        ("letters", {"log_file": "/proc/no/log"}, MountError, "/proc/no/log"),
    ],
)
def test_what_goes_wrong_is_told_where_it_was_asked(
    options: MountOptions,
    mountpoint: Path,
    dataset: str,
    changes: dict[str, object],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        control.mount(dataset, mountpoint, replace(options, **changes))  # type: ignore[arg-type]  # a table of options
    assert os.listdir(mountpoint) == []


def test_a_busy_mount_point(options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, options)
    with pytest.raises(MountError, match="dl://letters is mounted there already"):
        control.mount("letters", mountpoint, options)
    control.unmount(mountpoint)


def kill_all(mountpoint: Path) -> None:
    """All at once, as when memory runs out."""
    mount_processes.kill_all(mountpoint)
    wait_until_stale(mountpoint)


def test_a_daemon_that_was_killed_is_replaced(options: MountOptions, mountpoint: Path) -> None:
    supervisor = control.mount("letters", mountpoint, options)
    before = listed(mountpoint)
    assert before.daemon is not None and before.resends
    with open(mountpoint / "train/0.txt", "rb") as file:
        os.kill(before.daemon, signal.SIGKILL)
        assert len(os.listdir(mountpoint / "train")) == len(FILES)
        assert file.read() == FILES["train/0.txt"]
    after = listed(mountpoint)
    assert (after.process, after.restarts, after.upgrades) == (supervisor, 1, 0)
    assert after.daemon != before.daemon
    assert "was killed by signal 9" in after.trouble
    control.unmount(mountpoint)
    assert not is_alive(supervisor)


def test_a_dead_mount_can_be_mounted_again(options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, options)
    kill_all(mountpoint)
    assert listed(mountpoint).process is None
    control.mount("letters", mountpoint, options)
    assert len(os.listdir(mountpoint / "train")) == len(FILES)
    control.unmount(mountpoint)


def test_a_dead_mount_can_be_unmounted(options: MountOptions, mountpoint: Path) -> None:
    control.mount("letters", mountpoint, options)
    kill_all(mountpoint)
    control.unmount(mountpoint)
    assert os.listdir(mountpoint) == []


def test_an_upgrade_changes_the_daemon_and_nothing_else(options: MountOptions, mountpoint: Path) -> None:
    supervisor = control.mount("letters", mountpoint, options)
    before = listed(mountpoint)
    with open(mountpoint / "train/0.txt", "rb") as file:
        after = control.upgrade(mountpoint)
        assert file.read() == FILES["train/0.txt"]
    assert (after.process, after.upgrades, after.restarts) == (supervisor, 1, 0)
    assert after.daemon not in (None, before.daemon)
    control.unmount(mountpoint)
    with pytest.raises(MountError, match="no dataset is mounted there"):
        control.upgrade(mountpoint)


def test_unmounting_while_files_are_open(options: MountOptions, mountpoint: Path) -> None:
    process = control.mount("letters", mountpoint, options)
    with open(mountpoint / "train/0.txt", "rb") as file:
        with pytest.raises(MountError, match=f"in use by .* dlcmd umount --lazy {mountpoint}"):
            control.unmount(mountpoint)
        control.unmount(mountpoint, lazily=True)
        assert file.read() == FILES["train/0.txt"]
    while is_alive(process):
        time.sleep(0.01)


def test_who_keeps_a_mount_busy_is_named(
    options: MountOptions, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also who has a file mapped and closed, beside one whose descriptors are gone when they are looked at."""
    control.mount("letters", mountpoint, options)
    own = f"({os.getpid()})"
    with open(mountpoint / "train/0.txt", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with mapped, pytest.raises(MountError, match=re.escape(own)) as busy:
        control.unmount(mountpoint)
    assert "another user" not in str(busy.value)
    with open(mountpoint / "train/0.txt", "rb"):
        original = os.listdir
        monkeypatch.setattr(os, "listdir", lambda path: [*original(path), "999999"])
        with pytest.raises(MountError, match=re.escape(own)):
            control.unmount(mountpoint)
    control.unmount(mountpoint)


def test_an_unmount_names_a_process_that_does_not_end(
    options: MountOptions, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.mount("letters", mountpoint, options)
    supervision = supervision_of(str(mountpoint))
    assert supervision is not None
    monkeypatch.setattr(control, "UNMOUNT_END_TIMEOUT_S", 0.05)
    os.kill(supervision.supervisor, signal.SIGSTOP)
    try:
        (line,) = control.unmount(mountpoint)
    finally:
        os.kill(supervision.supervisor, signal.SIGCONT)
    assert f"{mountpoint} is unmounted" in line and f"kill {supervision.supervisor}" in line
    assert wait_for_end(supervision.supervisor, 60.0)


def test_a_low_limit_of_open_files_is_one_line_and_leaves_no_mount(
    options: MountOptions, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    with pytest.raises(MountError, match=r"may have 24 open files here, a mount needs 128.*ulimit -n"):
        control.mount("letters", mountpoint, options)
    assert mount_at(str(mountpoint)) is None


def test_there_is_nothing_to_unmount(mountpoint: Path) -> None:
    with pytest.raises(MountError, match="no dataset is mounted there"):
        control.unmount(mountpoint)


@pytest.fixture
def silent_server(tmp_path: Path) -> Iterator[str]:
    """A server that accepts and never answers."""
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield f"unix:{path}"


def test_a_daemon_that_does_not_come_up_in_time_is_ended(
    options: MountOptions, mountpoint: Path, silent_server: str
) -> None:
    silent = replace(options, server=silent_server)
    with pytest.raises(Unavailable, match=r"not ready within 1\.5 s"):
        control.mount("letters", mountpoint, silent, timeout_s=1.5)
    assert supervision_of(str(mountpoint)) is None and os.listdir(mountpoint) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_mount_whose_start_is_interrupted_leaves_nothing(
    options: MountOptions, mountpoint: Path, silent_server: str, how: signal.Signals
) -> None:
    arguments = ["letters", str(mountpoint), "-o", format_options(replace(options, server=silent_server))]
    command = python_command("dieselfs_client.main", *arguments)
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=module_environment()) as program:
        while (begun := supervision_of(str(mountpoint))) is None:
            assert program.poll() is None
        program.send_signal(how)
        assert wait_for_end(begun.supervisor, 60.0)
        assert program.wait(60.0) != 0
        assert program.stderr is not None and b"Traceback" not in program.stderr.read()
    assert os.listdir(mountpoint) == [] and mount_at(str(mountpoint)) is None
    control.mount("letters", mountpoint, options)
    control.unmount(mountpoint)


def test_the_log_lies_in_the_users_state(options: MountOptions, mountpoint: Path, tmp_path: Path) -> None:
    control.mount("letters", mountpoint, options)
    control.unmount(mountpoint)
    (log,) = (tmp_path / "xdg_state_home/dieselfs").iterdir()
    assert "serving generation" in log.read_text()
    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert log.stat().st_mode & 0o777 == 0o600


def test_what_is_mounted_survives_a_purge(
    server: RunningServer, options: MountOptions, mountpoint: Path
) -> None:
    with Dataset(server.settings(), "purged", must_exist=False) as dataset:
        dataset.put("file", b"first")
        dataset.flush()
        control.mount("purged", mountpoint, options)
        with closing(sqlite3.connect(server.folder / "metadata.db")) as metadata:
            # Mounts of other tests have notes of their own on this server.
            pins = (
                "select count(*) from note where dataset = (select number from dataset where name = 'purged')"
            )
            while not metadata.execute(pins).fetchone()[0]:
                time.sleep(0.01)
        dataset.put("file", b"second")
        dataset.flush()
        dataset.purge(grace_s=0)
        assert (mountpoint / "file").read_bytes() == b"first"
        control.unmount(mountpoint)
        dataset.purge(grace_s=0)
        control.mount("purged", mountpoint, options)
        assert (mountpoint / "file").read_bytes() == b"second"
        control.unmount(mountpoint)
