"""The locks of a job on a node: who is there, in which role, and that they end with whoever has them."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.cluster import node_lock
from dieselfs.cluster.job import Job
from dieselfs.cluster.member import RANK_MAX
from dieselfs.cluster.node_client import job_socket_path
from dieselfs.cluster.node_lock import NodeLock, lock_path, start_path
from dieselfs.errors import AccessDenied, Unavailable

HOLDER = """
import sys
from pathlib import Path
from dieselfs.cluster.node_lock import NodeLock
lock = NodeLock(Path(sys.argv[1]))
print(eval("lock." + sys.argv[2]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runtime" / "node.job"


@pytest.fixture
def lock(path: Path) -> Iterator[NodeLock]:
    with closing(NodeLock(path)) as lock:
        yield lock


@contextmanager
def other_process(path: Path, call: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has done something with a lock of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), call],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process
        finally:
            process.kill()


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_alone_there_is_nobody(lock: NodeLock) -> None:
    lock.be_candidate(3)
    lock.be_user(3)
    assert lock.try_lead() and lock.try_be_cache()
    assert not lock.has_master() and not lock.has_users()
    assert not lock.has_candidate_below(RANK_MAX) and not lock.has_user_below(RANK_MAX)


def test_candidates_and_users_are_seen_by_larger_ranks_only(path: Path, lock: NodeLock) -> None:
    with closing(NodeLock(path)) as other:
        other.be_candidate(5)
        assert [lock.has_candidate_below(rank) for rank in (0, 5, 6)] == [False, False, True]
        assert not lock.has_users() and not lock.has_master()
        other.be_user(7)
        assert [lock.has_user_below(rank) for rank in (0, 7, 8)] == [False, False, True]
        assert lock.has_users() and not lock.has_candidate_below(5)
    with closing(NodeLock(path)) as last:
        last.be_candidate(RANK_MAX)
        assert not lock.has_users() and not lock.has_master(), "the last candidate is no user"
        last.be_user(RANK_MAX)
        assert lock.has_users() and lock.cache_process() is None, "the last user is no cache"


def test_there_is_one_master_and_one_cache_until_they_are_killed(path: Path, lock: NodeLock) -> None:
    with other_process(path, "try_lead()") as master, other_process(path, "try_be_cache()") as cache:
        assert lock.has_master() and not lock.try_lead()
        assert lock.cache_process() == cache.pid and not lock.try_be_cache()
        killed(master)
        killed(cache)
        assert not lock.has_master() and lock.cache_process() is None
        assert lock.try_lead() and lock.try_be_cache()


def test_a_user_lives_as_long_as_what_it_has_forked(path: Path, lock: NodeLock) -> None:
    with other_process(path, "be_user(1), __import__('os').fork() or sys.stdin.read()") as user:
        assert lock.has_users()
        assert user.stdin is not None
        user.send_signal(signal.SIGKILL)
        user.wait()
        assert lock.has_users(), "its child"
        user.stdin.close()
        deadline_s = time.monotonic() + 60
        while lock.has_users():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_each_job_has_a_lock_of_its_own(path: Path) -> None:
    job = Job("train", 0, 2, "node-0")
    folder = path.parent
    sockets = [
        job_socket_path(folder, "data", b"d" * 32, job, b"f" * 16),
        job_socket_path(folder, "data", b"d" * 32, job, b"g" * 16),
        job_socket_path(folder, "data", b"d" * 32, replace(job, name="other"), b"f" * 16),
        job_socket_path(folder, "data", b"d" * 32, replace(job, node="node-1"), b"f" * 16),
    ]
    with ExitStack() as stack:
        for each in sockets:
            lock = stack.enter_context(closing(NodeLock(lock_path(each))))
            assert lock.try_lead() and lock_path(each) != each
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
        assert len(list(folder.iterdir())) == len(sockets)


def test_a_folder_that_others_reach_into_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o755)
    with pytest.raises(AccessDenied, match="0700"):
        NodeLock(path)
    path.parent.rmdir()
    path.parent.write_bytes(b"")
    with pytest.raises(Unavailable, match="lock of the job"):
        NodeLock(path)


def test_the_last_removes_the_file(path: Path) -> None:
    first, second = NodeLock(path), NodeLock(path)
    first.be_candidate(1)
    assert first.try_lead() and first.try_be_cache()
    start_path(path).touch()
    first.clear()
    assert path.exists() and second.try_lead(), "somebody else has it open"
    second.clear()
    assert list(path.parent.iterdir()) == []


def test_what_somebody_else_has_put_in_its_place_is_not_removed(path: Path) -> None:
    lock = NodeLock(path)
    path.unlink()
    with closing(NodeLock(path)) as other:
        assert other.try_lead()
        lock.clear()
        assert path.exists()


def test_who_opens_it_while_it_is_removed_waits_until_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_lock, "NODE_LOCK_TIMEOUT_S", 100.0)
    remover = NodeLock(path)
    assert remover._try_lock(fcntl.F_WRLCK, 0, length=0)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(NodeLock, path)
        assert not wait([opening], 0.05).done
        path.unlink()
        with closing(opening.result(60)) as lock:
            assert lock.try_lead() and path.exists()
    remover.close()


def test_one_that_is_never_removed_is_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lock, "NODE_LOCK_TIMEOUT_S", 0.05)
    with closing(NodeLock(path)) as remover:
        assert remover._try_lock(fcntl.F_WRLCK, 0, length=0)  # and is stopped
        with pytest.raises(Unavailable, match="has not finished removing it"):
            NodeLock(path)


def test_there_is_one_master_however_often_the_file_is_removed(path: Path) -> None:
    busy = path.with_suffix(".busy")
    code = f"""
import os
from pathlib import Path
from dieselfs.cluster.node_lock import NodeLock
times = 0
while times < 100:
    lock = NodeLock(Path({str(path)!r}))
    if lock.try_lead():
        os.close(os.open({str(busy)!r}, os.O_CREAT | os.O_EXCL))  # fails if there is another
        os.unlink({str(busy)!r})
        times += 1
    lock.clear()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(100) for process in processes] == [0, 0, 0]
    assert list(path.parent.iterdir()) == []
