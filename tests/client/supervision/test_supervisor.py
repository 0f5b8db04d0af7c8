"""Mounts whose daemons are killed, stopped, and replaced, under readers who check every byte."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_BUG, EXIT_OK, MountError
from dieselfs.process.launch import module_environment, python_command
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mounting import mount_device
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.control_channel import DESCRIPTORS_SPARE
from dieselfs_client.supervision.status import SupervisorStatus
from tests.support import verifying_reader
from tests.support.dlcmd import wait_until
from tests.support.server import running_server
from tests.support.supervised import (
    children_of,
    is_dead,
    log_of,
    readers,
    state,
    supervisor_and_zygote_run,
    wait_for,
    wait_until_ended,
    zygote_of,
)

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

KILLS = 12
KILL_INTERVAL_S = 0.1


def may_be_killed(now: SupervisorStatus) -> bool:
    """Every second one when it serves, for a mount is given up when none ever does; the others whatever they do."""
    return now.daemon != 0 and (now.is_served or now.restarts % 2 == 1)


def kill_daemon(mountpoint: Path) -> None:
    before = wait_for(mountpoint, may_be_killed)
    with suppress(ProcessLookupError):  # it is dead, and the next one is on its way
        os.kill(before.daemon, signal.SIGKILL)
    wait_for(mountpoint, lambda now: now.restarts > before.restarts)


def kill_again_and_again(mountpoint: Path, kills: int) -> None:
    while state(mountpoint).restarts < kills:
        kill_daemon(mountpoint)
        time.sleep(KILL_INTERVAL_S)


def test_readers_do_not_notice_that_daemons_are_killed(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path
) -> None:
    control.mount(dataset, mountpoint, options)
    with readers(mountpoint, tmp_path) as reading:
        kill_again_and_again(mountpoint, KILLS)
        reading.finish()
    after = wait_for(mountpoint, lambda now: now.is_served)
    assert after.restarts >= KILLS
    control.unmount(mountpoint)


def test_a_daemon_that_hangs_is_replaced(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(monkeypatch, "from dieselfs_client.supervision import child; child.HANG_S = 5")
    control.mount(dataset, mountpoint, options)
    hanging = state(mountpoint).daemon
    with readers(mountpoint, tmp_path) as reading:
        os.kill(hanging, signal.SIGSTOP)
        after = wait_for(mountpoint, lambda now: now.daemon != hanging and now.is_served)
        reading.finish()
    assert after.restarts >= 1  # on a machine that is slow enough, the next one looks hung, too
    assert f"daemon {hanging} sent no heartbeat for" in log_of(options)
    control.unmount(mountpoint)


@pytest.mark.parametrize(
    ("place", "deaths"),
    [
        ("KernelDriver._init", 1),
        ("KernelDriver.run", 13),
        ("_MountService._announce_mount", 1),
        ("_MountService._connect", 1),
    ],
)
def test_a_daemon_that_dies_while_it_agrees_with_the_kernel_is_replaced(
    options: MountOptions,
    dataset: str,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    deaths: int,
    tmp_path: Path,
) -> None:
    """Before it has mounted, before the kernel's first request is answered, and after, when nobody knows of it yet."""
    owner, _, method = place.partition(".")
    supervisor_and_zygote_run(
        monkeypatch,
        in_zygote=f"""
import os
from dieselfs_client.daemon.mount_daemon import _MountService
from dieselfs_client.mount.drivers.kernel_driver import KernelDriver
original = {owner}.{method}
def fatal(*arguments):
    with open("{tmp_path}/died", "a") as died:
        died.write(".")
    if os.path.getsize("{tmp_path}/died") <= {deaths}:
        os.kill(os.getpid(), 9)
    return original(*arguments)
{owner}.{method} = fatal
""",
    )
    control.mount(dataset, mountpoint, options)
    assert state(mountpoint).restarts == deaths
    assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
    control.unmount(mountpoint)


POISON = """
import os
from dieselfs_client.mount.drivers.kernel_driver import KernelDriver
original = KernelDriver._lookup
def look_up(self, request, *others):
    if bytes(request.body).startswith(b"poison"):
        os.abort()
    return original(self, request, *others)
KernelDriver._lookup = look_up
"""


def test_a_request_that_kills_each_daemon_ends_the_mount_with_a_reason(
    options: MountOptions, dataset: str, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(monkeypatch, in_zygote=POISON)
    supervisor = control.mount(dataset, mountpoint, replace(options, log_file=None))
    with pytest.raises(OSError):
        os.stat(mountpoint / "poison")
    wait_until_ended(supervisor)
    assert is_dead(mountpoint), "a folder that looks empty would pass for a dataset without files"
    [found] = [mount for mount in control.mounts() if mount.mountpoint == str(mountpoint)]
    assert found.is_stale
    assert re.match("11 daemons .*; reads fail until it is unmounted", found.trouble)
    control.unmount(mountpoint)
    assert mount_at(str(mountpoint)) is None


def test_in_the_foreground_the_reason_is_the_last_line_and_the_exit_code_says_so(
    options: MountOptions, dataset: str, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(monkeypatch, in_zygote=POISON)
    command = control.supervisor_command(dataset, str(mountpoint), options, "-", "-")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while mount_at(str(mountpoint)) is None:
                assert process.poll() is None
                time.sleep(0.01)
            with pytest.raises(OSError):
                os.stat(mountpoint / "poison")
            assert process.wait(60) == EXIT_BUG
            assert process.stderr is not None
            last = process.stderr.read().splitlines()[-1]
        finally:
            process.kill()
    assert re.fullmatch(f"dieselfs-mount: {mountpoint}: 11 daemons .*", last)


def test_daemons_that_cannot_begin_are_an_error_of_mounting(
    options: MountOptions, dataset: str, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(
        monkeypatch, in_zygote="from dieselfs_client.daemon import mount_daemon; mount_daemon.Node = None"
    )
    with pytest.raises(MountError, match="11 daemons in a row died before they could serve"):
        control.mount(dataset, mountpoint, options)
    assert mount_at(str(mountpoint)) is None
    assert "TypeError" in log_of(options)


def test_a_zygote_that_cannot_begin_is_an_error_of_mounting(
    options: MountOptions, dataset: str, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(monkeypatch, in_zygote="raise SystemExit('broken')")
    with pytest.raises(MountError, match="ended before it was ready; see its log"):
        control.mount(dataset, mountpoint, options)


BEFORE_LINUX_6_9 = """
from dieselfs_client.mount.points import connection
connection.resend = lambda device: False
"""


@pytest.mark.parametrize("is_resending", [True, False])
def test_readers_do_not_notice_an_upgrade(
    options: MountOptions,
    dataset: str,
    mountpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_resending: bool,
) -> None:
    supervisor_and_zygote_run(monkeypatch, in_zygote="" if is_resending else BEFORE_LINUX_6_9)
    control.mount(dataset, mountpoint, options)
    with readers(mountpoint, tmp_path) as reading:
        for count in range(1, 4):
            before = state(mountpoint)
            after = control.upgrade(mountpoint)
            assert after.upgrades == count
            assert after.daemon not in (None, before.daemon)
        reading.finish()
    assert (after.restarts, after.resends) == (0, is_resending)
    control.unmount(mountpoint)


# The process that has forked a daemon does not run before that serves, as on a busy machine.
LATE_PARENT = """
import os, time
fork = os.fork
def forked():
    child = fork()
    if child:
        time.sleep(1)
    return child
os.fork = forked
"""


def test_a_mount_that_is_served_names_its_daemon_though_the_parent_of_that_is_late(
    options: MountOptions, dataset: str, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(monkeypatch, in_zygote=LATE_PARENT)
    assert control.mount(dataset, mountpoint, options)
    before = state(mountpoint)
    after = control.upgrade(mountpoint)
    assert before.daemon
    assert after.daemon not in (None, before.daemon)
    control.unmount(mountpoint)


def test_an_upgrade_that_does_not_come_up_changes_nothing(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os\nif os.path.exists('{tmp_path}/broken'): raise SystemExit(3)"
    supervisor_and_zygote_run(monkeypatch, in_zygote=code)
    control.mount(dataset, mountpoint, options)
    before = state(mountpoint)
    (tmp_path / "broken").touch()
    with pytest.raises(
        MountError, match="the upgrade failed, the old daemon continues: ended with exit code 3"
    ):
        control.upgrade(mountpoint)
    assert state(mountpoint).daemon == before.daemon
    assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
    (tmp_path / "broken").unlink()
    assert control.upgrade(mountpoint).daemon != before.daemon
    control.unmount(mountpoint)


def test_a_kernel_that_cannot_resend_gets_a_new_mount_on_the_same_path(
    options: MountOptions, dataset: str, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(monkeypatch, in_zygote=BEFORE_LINUX_6_9)
    control.mount(dataset, mountpoint, options)
    assert "if the daemon dies" in log_of(options)
    descriptor = os.open(mountpoint / "7", os.O_RDONLY)
    try:
        first = os.fstat(descriptor).st_dev
        os.kill(state(mountpoint).daemon, signal.SIGKILL)
        wait_for(mountpoint, lambda now: now.restarts == 1 and now.is_served)
        assert os.stat(mountpoint).st_dev != first
        assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
        with pytest.raises(OSError):
            os.read(descriptor, 100)
    finally:
        with suppress(OSError):  # there is nobody left to hear of it
            os.close(descriptor)
    assert "is mounted again" in log_of(options)
    control.unmount(mountpoint)


def test_a_daemon_that_waits_for_itself_and_cannot_die_is_replaced(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of a request of its own, one of its threads waits for an answer that only the next daemon
    can give.
    """
    supervisor_and_zygote_run(
        monkeypatch,
        in_zygote=f"""
import os, threading
from dieselfs_client.mount.drivers.kernel_driver import KernelDriver
original = KernelDriver._lookup
def look_up(self, request, *others):
    if bytes(request.body).startswith(b"ask yourself"):
        threading.Thread(target=os.path.exists, args=("{mountpoint}/myself",)).start()
    elif bytes(request.body).startswith(b"myself") and not os.path.exists("{tmp_path}/died"):
        open("{tmp_path}/died", "w").close()
        os.kill(os.getpid(), 9)
    return original(self, request, *others)
KernelDriver._lookup = look_up
""",
    )
    control.mount(dataset, mountpoint, options)
    first = state(mountpoint).daemon
    assert not (mountpoint / "ask yourself").exists()
    wait_for(mountpoint, lambda now: now.daemon != first and now.is_served)
    assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
    wait_until_ended(first)
    control.unmount(mountpoint)


def test_neither_the_zygote_nor_the_server_nor_the_cache_is_needed_for_a_new_daemon(
    options: MountOptions, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tmp_path / "server") as server:
        with Dataset(server.settings(), "gone", must_exist=False) as data:
            data.put("folder/file", b"content")
        control.mount("gone", mountpoint, replace(options, server=server.unix))
        assert (mountpoint / "folder/file").read_bytes() == b"content"
    before = state(mountpoint)
    shutil.rmtree(tmp_path / "xdg_cache_home")
    zygote = zygote_of(before)
    os.kill(zygote, signal.SIGKILL)
    wait_for(mountpoint, lambda now: zygote_of(now) not in (0, zygote))
    os.kill(before.daemon, signal.SIGKILL)
    after = wait_for(mountpoint, lambda now: now.restarts == 1 and now.is_served)  # it was forked before
    os.kill(after.daemon, signal.SIGKILL)
    after = wait_for(mountpoint, lambda now: now.restarts == 2 and now.is_served)
    assert os.getsid(after.daemon) == zygote_of(after)
    assert (mountpoint / "folder/file").stat().st_size == 7
    assert not (mountpoint / "folder/unknown").exists()
    control.unmount(mountpoint)


def test_the_first_zygote_is_a_fork_and_a_later_one_a_program(
    options: MountOptions, dataset: str, mountpoint: Path
) -> None:
    """A later one may have to run code that was installed in the meantime."""

    def command_of(process: int) -> bytes:
        return Path(f"/proc/{process}/cmdline").read_bytes()

    def memory_files_of(process: int) -> set[str]:
        links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
        return {link for link in links if link.startswith("/memfd:")}

    control.mount(dataset, mountpoint, options)
    before = state(mountpoint)
    first = zygote_of(before)
    assert command_of(first) == command_of(before.supervisor)
    assert memory_files_of(before.supervisor) and not memory_files_of(first)  # they keep a mount alive
    os.kill(first, signal.SIGKILL)
    after = wait_for(mountpoint, lambda now: zygote_of(now) not in (0, first))
    later = zygote_of(after)
    wait_until(lambda: b"dieselfs_client.zygote" in command_of(later))
    assert b"supervision.supervisor" not in command_of(later)
    assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
    control.unmount(mountpoint)


def standbys(now: SupervisorStatus) -> list[int]:
    """Daemons that wait."""
    zygote = zygote_of(now)
    others = [child for child in children_of(now) if child not in (zygote, now.daemon)]
    return [child for child in others if os.getsid(child) == zygote]


def test_a_standby_daemon_is_forked_once_the_mount_is_read(
    options: MountOptions, dataset: str, mountpoint: Path
) -> None:
    """Until then, the zygote forks the next daemon when it is needed."""
    control.mount(dataset, mountpoint, options)
    first = state(mountpoint)
    assert "7" in os.listdir(mountpoint)
    os.kill(first.daemon, signal.SIGKILL)
    second = wait_for(mountpoint, lambda now: now.restarts == 1 and now.is_served)
    assert os.getsid(second.daemon) == zygote_of(second) == zygote_of(first)
    assert standbys(second) == []
    assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
    wait_until(lambda: len(standbys(second)) == 1)
    [standby] = standbys(second)
    os.kill(second.daemon, signal.SIGKILL)
    third = wait_for(mountpoint, lambda now: now.restarts == 2 and now.is_served)
    assert third.daemon == standby
    wait_until(lambda: len(standbys(third)) == 1)  # without another read
    control.unmount(mountpoint)


def test_a_signal_to_all_processes_is_a_signal_to_the_supervisor(
    options: MountOptions, dataset: str, mountpoint: Path
) -> None:
    """As a service manager stops a mount."""
    supervisor = control.mount(dataset, mountpoint, options)
    now = state(mountpoint)
    for process in (*children_of(now), supervisor):
        os.kill(process, signal.SIGTERM)
    wait_until_ended(supervisor)
    assert mount_at(str(mountpoint)) is None
    assert "died" not in log_of(options) and "killed" not in log_of(options)


def test_a_daemon_that_does_not_stop_is_not_waited_for(
    options: MountOptions, dataset: str, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_and_zygote_run(
        monkeypatch, "from dieselfs_client.supervision import supervisor; supervisor.STOP_TIMEOUT_S = 0.5"
    )
    supervisor = control.mount(dataset, mountpoint, options)
    os.kill(state(mountpoint).daemon, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGTERM)
    wait_until_ended(supervisor)
    assert mount_at(str(mountpoint)) is None


def test_a_stop_before_the_mount_is_ready_removes_the_dead_mount_that_it_was_to_replace(
    options: MountOptions, mountpoint: Path
) -> None:
    """As a service manager stops a mount that it has just started again after all processes were killed."""
    os.close(mount_device(str(mountpoint), "dl://letters"))
    assert is_dead(mountpoint)
    never_warm = [sys.executable, "-c", "import time; time.sleep(3600)"]
    command = python_command("dieselfs_client.supervision.supervisor", "-", "-", str(mountpoint), *never_warm)
    supervisor = subprocess.Popen(command, env=module_environment(), stderr=subprocess.DEVNULL)
    wait_for(mountpoint, lambda now: now.supervisor == supervisor.pid)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(60) == EXIT_OK
    assert mount_at(str(mountpoint)) is None


def test_it_imports_nothing_that_is_large() -> None:
    """It takes its memory for nothing, as long as the mount lives."""
    large = "{name for name in sys.modules if name in ('numpy', 'trio') or name.startswith('dieselfs.')}"
    code = f"import sys, dieselfs_client.supervision.supervisor; print(*sorted({large}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).split() == [
        "dieselfs.errors",  # by the package itself; both take 0.1 MB
        "dieselfs.process",
        "dieselfs.process.restart_policy",
    ]


KEEPER = """
import os, socket, sys
from dieselfs_client.supervision.supervisor_client import SupervisorClient
from dieselfs_client.supervision.control_channel import ControlChannel, receive_inheritance
from dieselfs_client.daemon.forking import _is_forked
report, end = sys.argv[1:]
channel = ControlChannel(socket.socket(fileno=int(end)))
receive_inheritance(channel)
channel.send("warm")
while (message := channel.receive_patiently(None)) is not None:
    of_daemon = ControlChannel(socket.socket(fileno=message.descriptor))
    if _is_forked(of_daemon):
        break
    of_daemon.close()
else:
    sys.exit()
channel.close()
supervisor = SupervisorClient(of_daemon)
kept = {name: os.pread(descriptor, 9, 0) for name, descriptor in supervisor.inherited.items()}
for name in ("one", "two", *map(str, range(20))):
    memory = os.memfd_create(name)
    os.write(memory, name.encode() + kept.get(name, b""))
    supervisor.tell("keep", name, memory)
supervisor.tell("drop", "two")
supervisor.tell("ready")
with open(report, "a") as file:
    print(os.getpid(), *(f"{name}:{content.decode()}" for name, content in kept.items()), file=file, flush=True)
while (message := of_daemon.receive_patiently(None)) is not None and message.word != "stop":
    pass
"""


def test_what_a_daemon_has_kept_is_there_for_the_next_one(options: MountOptions, tmp_path: Path) -> None:
    """As much as there is room for; more is let go of."""
    report = tmp_path / "report"
    report.touch()
    room = 10
    zygote = [sys.executable, "-c", KEEPER, str(report)]
    supervisor = [
        sys.executable,
        "-m",
        "dieselfs_client.supervision.supervisor",
        "-",
        str(tmp_path / "log"),
        "nowhere",
        *zygote,
    ]
    limited = ["/bin/sh", "-c", f'ulimit -n {DESCRIPTORS_SPARE + room}; exec "$@"', "sh", *supervisor]
    process = subprocess.Popen(limited)
    try:
        lives: list[list[str]] = []
        while len(lives) < 3:
            assert process.poll() is None
            if len(lives) < len(known := [line.split() for line in report.read_text().splitlines()]):
                lives = known
                os.kill(int(lives[-1][0]), signal.SIGKILL)
            time.sleep(0.01)
    finally:
        process.terminate()
        process.wait(60)
    assert lives[0][1:] == []
    assert lives[1][1:] == ["one:one", *(f"{number}:{number}" for number in range(room - 2))]
    assert "one:oneone" in lives[2][1:]
