"""The master of a node: found, waited for, started, started again, and let go."""

import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.cluster import node_client
from dieselfs.cluster.daemon import JOB_START_INTERVAL_S, JobDaemon, MasterWatch
from dieselfs.cluster.node_lock import NodeLock, lock_path
from dieselfs.limits import MASTER_PATIENCE_S, MASTER_POLL_S, MASTER_SILENCE_S
from dieselfs.process.launch import wait_for_end
from tests.support.scripted_daemon import greeting, scripted_daemon

DIGEST = bytes(range(32))
RANK = 3
PATIENCE_S = 100.0

MASTER = """
import os, sys, threading
from pathlib import Path
from dieselfs.cluster.node_lock import NodeLock, lock_path
from tests.support.scripted_daemon import greeting, scripted_daemon
path = Path(sys.argv[1])
lock = NodeLock(lock_path(path))
lock.be_candidate(0)
path.unlink(missing_ok=True)
with scripted_daemon(path, greeting(lambda *asked: None)):
    print(os.getpid(), flush=True)
    while lock.has_users():
        threading.Event().wait(0.02)
"""
FAILING = "print(0, flush=True)"


def open_nothing() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class Node:
    """A node without a mount. What starts there says so in the log, by its process ID."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "master.sock"
        self.log = folder / "log"
        self.daemons: list[JobDaemon] = []
        self.now_s = 0.0

    def daemon(self, program: str = MASTER, rank: int = RANK, is_clock_real: bool = True) -> JobDaemon:
        command = [sys.executable, "-c", program, str(self.path)]
        clocks: tuple[Callable[[], float], Callable[[float], None]] = (time.monotonic, time.sleep)
        if not is_clock_real:
            clocks = (lambda: self.now_s, self.pause)
        daemon = JobDaemon(self.path, DIGEST, rank, lambda _: command, self.log, open_nothing, *clocks)
        self.daemons.append(daemon)
        return daemon

    def pause(self, duration_s: float) -> None:
        self.now_s += duration_s

    def started(self) -> list[int]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line) for line in lines if line.isdigit()]

    def until_started(self, times: int) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while len(self.started()) < times:
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def let_time_pass(self) -> None:
        """As if the last start had been a while ago."""
        os.utime(self.path.with_suffix(".start"), (0, 0))


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="node-"))
    node = Node(folder)
    yield node
    for daemon in node.daemons:
        daemon.close()
    for process in filter(None, node.started()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    shutil.rmtree(folder)


def test_it_begins_where_the_program_is(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    node.daemon("import pathlib; pathlib.Path('here').touch(); print(0, flush=True)").ensure(0.0)
    node.until_started(1)
    assert (tmp_path / "here").exists(), "paths in its settings are meant from there"


def is_answered(node: Node) -> bool:
    return MasterWatch(node.path, DIGEST).look()


def test_the_first_who_needs_a_master_starts_one_and_the_others_find_it(node: Node) -> None:
    node.daemon().ensure(PATIENCE_S)
    assert is_answered(node) and len(node.started()) == 1
    node.daemon(rank=RANK - 1).ensure(PATIENCE_S)
    node.daemon(rank=RANK + 1).ensure(PATIENCE_S)
    assert len(node.started()) == 1


def test_it_lives_for_as_long_as_any_program_has_hold_of_it(node: Node) -> None:
    first, second = node.daemon(), node.daemon()
    first.ensure(PATIENCE_S)
    first.close()
    first.close()
    probe = NodeLock(lock_path(node.path))
    assert probe.has_users() and is_answered(node)
    second.close()
    assert not probe.has_users()
    probe.close()
    end_s = time.monotonic() + PATIENCE_S
    while is_answered(node):
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize("is_clock_set_back", [False, True])
def test_a_master_that_dies_is_started_again(node: Node, is_clock_set_back: bool) -> None:
    daemon = node.daemon()
    daemon.ensure(PATIENCE_S)
    (killed,) = node.started()
    os.kill(killed, signal.SIGKILL)
    if is_clock_set_back:
        os.utime(node.path.with_suffix(".start"), (time.time() + 86_400.0,) * 2)
    else:
        node.let_time_pass()
    daemon.ensure(PATIENCE_S)
    node.until_started(2)
    assert is_answered(node) and len(node.started()) == 2


def test_a_master_that_is_stopped_is_killed_and_another_started(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.daemon().ensure(PATIENCE_S)
    (stopped,) = node.started()
    os.kill(stopped, signal.SIGSTOP)
    node.let_time_pass()
    daemon = node.daemon(is_clock_real=False)
    with monkeypatch.context() as patch:
        patch.setattr(node_client, "NODE_HELLO_TIMEOUT_S", 0.02)
        while "killed it" not in caplog.text:
            daemon.ensure(0.0)
            assert node.now_s <= MASTER_SILENCE_S
            node.pause(MASTER_SILENCE_S / 4)
    while len(node.started()) < 2:
        daemon.ensure(0.0)
    assert wait_for_end(stopped, PATIENCE_S)


def test_what_fails_is_said_and_tried_again_more_and_more_seldom(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = node.daemon(FAILING)
    with caplog.at_level(logging.WARNING):
        daemon.ensure(PATIENCE_S)  # and does not wait for what will not come
    assert "failed to start" in caplog.text and str(node.log) in caplog.text and len(node.started()) == 1
    start = node.path.with_suffix(".start")
    os.utime(start, (time.time() - 1.5 * JOB_START_INTERVAL_S,) * 2)
    daemon.ensure(0.0)
    assert len(node.started()) == 1
    os.utime(start, (time.time() - 2.5 * JOB_START_INTERVAL_S,) * 2)
    daemon.ensure(0.0)
    node.until_started(2)


def test_no_program_is_no_error(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    command = [str(node.path.parent / "no such program")]
    daemon = JobDaemon(node.path, DIGEST, RANK, lambda _: command, node.log, open_nothing)
    with caplog.at_level(logging.WARNING):
        daemon.ensure(PATIENCE_S)
    assert "failed to start" in caplog.text and "no such program" in node.log.read_text()
    daemon.close()


def test_the_smallest_rank_that_lives_goes_first(node: Node) -> None:
    smaller = node.daemon(FAILING, rank=RANK - 1)
    larger = node.daemon(FAILING, is_clock_real=False)
    larger.ensure(MASTER_PATIENCE_S - MASTER_POLL_S)
    assert not node.path.with_suffix(".start").exists()
    larger.ensure(MASTER_PATIENCE_S)  # it does not do it: perhaps it never reads
    node.until_started(1)
    assert node.now_s < 2 * MASTER_PATIENCE_S + MASTER_POLL_S
    smaller.close()


def test_the_smallest_rank_does_not_wait(node: Node) -> None:
    node.daemon(FAILING, rank=RANK + 1)
    node.daemon(FAILING, is_clock_real=False).ensure(0.0)
    node.until_started(1)
    assert node.now_s == 0


def test_a_node_that_has_a_daemon_is_given_no_other(node: Node) -> None:
    """That of a mount, for example, which is not ready yet."""
    daemon = node.daemon(is_clock_real=False)
    of_mount = NodeLock(lock_path(node.path))
    of_mount.be_candidate(RANK)
    daemon.ensure(20.0)
    assert not node.path.with_suffix(".start").exists() and node.now_s >= 20.0
    with scripted_daemon(node.path, greeting(lambda *asked: None)):
        daemon.ensure(20.0)
    assert node.now_s < 21.0
    of_mount.close()


def test_a_folder_that_others_can_enter_is_not_used(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.path.parent.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        daemon = node.daemon(is_clock_real=False)
    assert "cannot take part" in caplog.text
    daemon.ensure(20.0)
    assert node.now_s == 0 and not node.started()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_keeps_hold_of_it(node: Node) -> None:
    daemon = node.daemon(FAILING)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    daemon.close()
    probe = NodeLock(lock_path(node.path))
    assert probe.has_users()
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    assert not probe.has_users()
    probe.close()
