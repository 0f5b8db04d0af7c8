"""A background process: detached, logged, waited for, and ended if it is not ready."""

import os
import resource
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dieselfs.errors import MountError, NotFound, Unavailable
from dieselfs.process.launch import (
    ProcessHandle,
    launch,
    module_environment,
    python_command,
    start,
    wait_for_end,
)

PATIENCE_S = 60.0

DAEMON = """
import os, signal, sys
from dieselfs.errors import NotFound
from dieselfs.process.launch import LaunchReport
print("begun", os.getpid(), flush=True)
report = LaunchReport(int(sys.argv[2]))
match sys.argv[1]:
    case "ready":
        report.ready()
    case "fails":
        report.failed(NotFound("there is no\\ndataset \\udcff"))
        sys.exit(1)
    case "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    case "unknown":
        report.failed(ArithmeticError("a fault"))
    case "late":
        os.kill(os.getppid(), 0)
signal.sigwait([signal.SIGTERM])
if sys.argv[1] == "late":
    print("nobody waits" if not report.ready() else "somebody waits", flush=True)
"""


def launched(log: Path, how: str, timeout_s: float = PATIENCE_S) -> int:
    def command(report: int) -> list[str]:
        return [
            sys.executable,
            "-c",
            f"import signal; signal.pthread_sigmask(0, [15])\n{DAEMON}",
            how,
            str(report),
        ]

    return launch(command, log, timeout_s, "the daemon", MountError)


def begun(log: Path) -> int:
    """The process that has begun, by its log."""
    return int(log.read_text().split("begun ")[1].split()[0])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "state" / "log"


def test_a_daemon_that_is_ready_is_detached(log: Path) -> None:
    process = launched(log, "ready")
    try:
        assert begun(log) == process
        assert os.getsid(process) != os.getsid(0), "Ctrl-C here must not reach it"
        assert os.readlink(f"/proc/{process}/cwd") == "/"
        with pytest.raises(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
        files = [os.readlink(f"/proc/{process}/fd/{number}") for number in range(3)]
        assert files == ["/dev/null", str(log), str(log)]
    finally:
        assert ProcessHandle(process).kill(PATIENCE_S)


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("fails", NotFound, "there is no dataset \udcff"),
        ("dies", MountError, "the daemon ended before it was ready; see its log: .*log"),
        ("unknown", MountError, "a fault"),
    ],
)
def test_what_goes_wrong_is_raised_here_and_nothing_stays(
    log: Path, how: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        launched(log, how)
    assert wait_for_end(begun(log), 0.0)


def test_a_daemon_that_is_not_ready_in_time_is_ended(log: Path) -> None:
    with pytest.raises(Unavailable, match="not ready within 2 s"):
        launched(log, "late", 2.0)
    assert wait_for_end(begun(log), 0.0)


def test_a_daemon_is_ended_when_the_wait_for_it_is_interrupted(log: Path) -> None:
    code = f"""
import signal
from pathlib import Path
from tests.dieselfs.process.test_launch import launched
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
launched(Path({str(log)!r}), "late")
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=module_environment()) as program:
        until(lambda: log.exists() and "begun" in log.read_text())
        handle = ProcessHandle(begun(log))
        program.send_signal(signal.SIGINT)
        assert handle.wait(PATIENCE_S) and program.wait(PATIENCE_S) != 0


def test_a_daemon_learns_that_its_launcher_was_killed(log: Path) -> None:
    code = f"""
from pathlib import Path
from tests.dieselfs.process.test_launch import launched
launched(Path({str(log)!r}), "late")
"""
    with subprocess.Popen([sys.executable, "-c", code], env=module_environment()) as program:
        until(lambda: log.exists() and "begun" in log.read_text())
        program.kill()
    handle = ProcessHandle(begun(log))
    assert handle.end(PATIENCE_S)
    assert "nobody waits" in log.read_text()


def test_a_program_with_many_descriptors_can_launch_one(log: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while stack.enter_context(open(os.devnull, "rb")).fileno() < 1100:
            pass
        assert ProcessHandle(launched(log, "ready")).kill(PATIENCE_S)


def test_it_gets_the_descriptors_the_folder_and_the_modules(log: Path, tmp_path: Path) -> None:
    descriptor = os.memfd_create("given", 0)
    os.write(descriptor, b"given")
    code = "import os, sys, dieselfs; print(os.getcwd(), os.pread(int(sys.argv[1]), 9, 0).decode(), sep=':')"
    process = start([sys.executable, "-c", code, str(descriptor)], log, [descriptor], str(tmp_path))
    os.close(descriptor)
    with suppress(ProcessLookupError):
        assert ProcessHandle(process).wait(PATIENCE_S)
    assert log.read_text() == f"{tmp_path}:given\n"


def test_a_program_that_cannot_be_run_ends_and_says_so_in_the_log(log: Path, tmp_path: Path) -> None:
    process = start([str(tmp_path / "no program")], log)
    assert wait_for_end(process, PATIENCE_S)
    assert "no program" in log.read_text()


def test_a_log_that_cannot_be_written_is_named() -> None:
    with pytest.raises(MountError, match=r"cannot start the daemon.*/proc/no/log"):
        launched(Path("/proc/no/log"), "ready")


def test_a_module_runs_with_what_we_import(tmp_path: Path) -> None:
    command = python_command("dieselfs.etcd.helper")
    assert command[1:] == ["-P", "-m", "dieselfs.etcd.helper"]
    environment = module_environment()
    own = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    assert own.isdisjoint(environment["PYTHONPATH"].split(os.pathsep)), "an upgrade of Python may change them"
    code = "import dieselfs, dieselfs_client, dieselfs_server"
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, cwd=tmp_path, check=True)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)
