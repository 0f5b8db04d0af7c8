"""A command whose end leaves nothing: with the process, the keeper, and the command in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WAIT_S = 60.0
PROGRAM = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
from dieselfs.process.keeper import end_as, fork_keeper, kill_descendants, run_command
folder = Path(sys.argv[1])
fork_keeper(lambda: (folder / "cleaned").touch())
(folder / "keeper").write_text(str(os.getpid()))
try:
    status = run_command(sys.argv[2:], {**os.environ, "FOLDER": str(folder)})
finally:
    (folder / "ended").touch()
    kill_descendants()
end_as(status)
"""
# Leaves a process that has a session and a parent of its own, and waits.
LONELY = "setsid sh -c 'echo $$ > $FOLDER/new; mv $FOLDER/new $FOLDER/orphan; exec sleep 1000' & "
WAITS = "echo $$ > $FOLDER/new2; mv $FOLDER/new2 $FOLDER/command; exec sleep 1000"


def start(folder: Path, *command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), *command])


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, "the condition does not become true"
        time.sleep(0.01)


def process_in(file: Path) -> int:
    wait_until(file.exists)
    return int(file.read_text())


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    assert start(tmp_path, "sh", "-c", "exit 42").wait(WAIT_S) == 42
    assert (tmp_path / "cleaned").exists()


def test_the_signal_that_kills_the_command_kills_the_process(tmp_path: Path) -> None:
    assert start(tmp_path, "sh", "-c", "kill -KILL $$").wait(WAIT_S) == -signal.SIGKILL
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(tmp_path: Path, signum: signal.Signals) -> None:
    took = f"trap 'exit 9' {signum.name[3:]}; echo > $FOLDER/command; while true; do sleep 0.05; done"
    process = start(tmp_path, "sh", "-c", took)
    wait_until((tmp_path / "command").exists)
    process.send_signal(signum)
    assert process.wait(WAIT_S) == 9


def test_what_the_command_leaves_is_killed(tmp_path: Path) -> None:
    left = start(tmp_path, "sh", "-c", LONELY + "while [ ! -e $FOLDER/orphan ]; do sleep 0.05; done")
    assert left.wait(WAIT_S) == 0
    assert has_ended(process_in(tmp_path / "orphan"))


def test_nothing_survives_the_process(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", LONELY + WAITS)
    left = [process_in(tmp_path / name) for name in ("orphan", "command", "keeper")]
    process.kill()
    process.wait(WAIT_S)
    wait_until(lambda: all(map(has_ended, left)))
    assert (tmp_path / "ended").exists()


def test_nothing_survives_the_keeper(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", LONELY + WAITS)
    left = [process_in(tmp_path / name) for name in ("orphan", "command")]
    os.kill(process_in(tmp_path / "keeper"), signal.SIGKILL)
    assert process.wait(WAIT_S) == -signal.SIGKILL
    assert all(map(has_ended, left))
    assert (tmp_path / "cleaned").exists()
    assert not (tmp_path / "ended").exists()


def test_a_command_does_not_outlive_both(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", WAITS)
    command, keeper = (process_in(tmp_path / name) for name in ("command", "keeper"))
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    process.kill()
    process.wait(WAIT_S)
    wait_until(lambda: has_ended(command))
