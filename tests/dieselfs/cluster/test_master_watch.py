"""Masters that answer, that refuse, that are stopped: only those that say nothing for long are killed."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from dieselfs.cluster import node_client
from dieselfs.cluster.daemon import MasterWatch
from dieselfs.cluster.node_messages import Refusal, encode
from dieselfs.errors import Unavailable
from tests.support.scripted_daemon import greeting, scripted_daemon

DIGEST = bytes(range(32))
SILENCE_S = 20.0

MASTER = """
import sys
from pathlib import Path
from tests.support.scripted_daemon import greeting, scripted_daemon
with scripted_daemon(Path(sys.argv[1]), greeting(lambda *asked: None)):
    print("listening", flush=True)
    sys.stdin.read()
"""


class Clock:
    """Goes on when it is told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="watch-") as folder:
        yield Path(folder) / "master.sock"


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped says nothing, however long it is waited for."""
    monkeypatch.setattr(node_client, "NODE_HELLO_TIMEOUT_S", 0.02)


@contextmanager
def other_process(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", MASTER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"listening\n"
            yield process
        finally:
            process.kill()


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGSTOP; returns when it has stopped."""
    process.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        time.sleep(0.001)


def test_a_master_that_answers_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "NODE_HELLO_TIMEOUT_S", 100.0)  # should this machine be loaded
    clock = Clock()
    with closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch, other_process(path) as master:
        for _ in range(5):
            assert watch.look() and watch.silent_s == 0
            clock.now_s += SILENCE_S
        assert master.poll() is None


def test_one_that_says_nothing_for_long_is_killed(
    path: Path, impatience: None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch, other_process(path) as master:
        stop(master)
        for number in range(4):
            assert not watch.look()
            assert watch.silent_s == number * watch.interval_s and master.poll() is None
            clock.now_s += watch.interval_s
        assert not watch.look()
        assert master.wait() == -signal.SIGKILL
        assert f"process {master.pid}, has not answered for 20 s: killed it" in caplog.text
        assert not watch.look() and watch.silent_s == 0, "there is none any more"


def test_who_looks_seldom_or_was_stopped_himself_meanwhile_begins_anew(path: Path, impatience: None) -> None:
    clock = Clock()
    with closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch, other_process(path) as master:
        stop(master)
        for _ in range(5):
            watch.look()
            assert watch.silent_s == 0 and master.poll() is None
            clock.now_s += 10 * SILENCE_S
        for _ in range(2):
            watch.look()
            assert master.poll() is None
            clock.now_s += SILENCE_S / 2
        watch.look()
        assert master.wait() == -signal.SIGKILL


def handles() -> int:
    """How many descriptors of processes this one has."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return len([link for link in links if "pidfd" in link])


def test_no_descriptor_is_left(path: Path, impatience: None) -> None:
    clock = Clock()
    with other_process(path) as master:
        stop(master)
        before = handles()
        with closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch:
            for _ in range(3):
                watch.look()
                assert handles() == before + 1
                clock.now_s += 2 * SILENCE_S
        assert handles() == before


def test_one_that_goes_on_in_time_is_left_alone(path: Path, impatience: None) -> None:
    clock = Clock()
    with closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch, other_process(path) as master:
        stop(master)
        for _ in range(3):
            assert not watch.look()
        master.send_signal(signal.SIGCONT)
        while not watch.look():
            pass
        clock.now_s += SILENCE_S
        assert watch.silent_s == 0 and master.poll() is None


def test_when_many_wait_for_it_already_it_is_still_found(path: Path, impatience: None) -> None:
    clock = Clock()
    with (
        closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch,
        other_process(path) as master,
        ExitStack() as stack,
    ):
        stop(master)
        watch.look()
        with suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                waiting.setblocking(False)
                waiting.connect(str(path))
        for _ in range(2):
            clock.now_s += SILENCE_S
            watch.look()
        assert master.wait() == -signal.SIGKILL


def test_none_is_not_silent(path: Path) -> None:
    with closing(MasterWatch(path, DIGEST)) as watch:
        assert not watch.look() and watch.silent_s == 0


def test_one_that_refuses_us_is_not_silent(path: Path) -> None:
    clock = Clock()
    refusal = Refusal.because(Unavailable("it has too many readers"))
    with (
        closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch,
        scripted_daemon(path, lambda connection, number, _: connection.send(encode(number, refusal))),
    ):
        assert not watch.look() and watch.silent_s == 0


def test_nobody_kills_himself(path: Path, impatience: None, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with (
        closing(MasterWatch(path, DIGEST, SILENCE_S, clock)) as watch,
        scripted_daemon(path, lambda *asked: None) as master,
    ):
        for _ in range(4):
            clock.now_s += SILENCE_S
            assert not watch.look()
        assert caplog.text.count("cannot be killed from here") == 1
        master.answer = greeting(lambda *asked: None)
        while not watch.look():
            pass
        assert watch.silent_s == 0
