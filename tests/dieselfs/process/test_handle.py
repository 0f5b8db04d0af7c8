"""Processes are watched and ended by handles, and no other process is hit."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dieselfs.process.launch import ProcessHandle, wait_for_end

PATIENCE_S = 60.0
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        yield process
        process.kill()


def test_one_that_ends_in_time_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        handle = ProcessHandle(process.pid)
        assert not handle.has_ended and not handle.wait(0.01)
        assert handle.kill(PATIENCE_S) and handle.has_ended
    assert process.returncode == -signal.SIGTERM


def test_one_that_does_not_end_is_killed(process: subprocess.Popen[bytes]) -> None:
    handle = ProcessHandle(process.pid)
    assert not handle.end(0.01)
    assert handle.kill(0.01)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        handle.send(signal.SIGTERM)


def test_what_has_ended_is_not_waited_for() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert wait_for_end(process.pid, 0.0)
    with pytest.raises(ProcessLookupError):
        ProcessHandle(process.pid)


def test_a_handle_above_descriptor_1023_works(process: subprocess.Popen[bytes]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while stack.enter_context(open(os.devnull, "rb")).fileno() < 1100:
            pass
        assert not ProcessHandle(process.pid).wait(0.01)


def test_a_handle_that_is_forgotten_is_closed(process: subprocess.Popen[bytes]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    handle = ProcessHandle(process.pid)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del handle
    assert len(os.listdir("/proc/self/fd")) == before
