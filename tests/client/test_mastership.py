"""The master of a node: one at a time, the smallest rank, taken over when it dies, however it dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from dieselfs.cache.member import Terms
from dieselfs.errors import AccessDenied, Unavailable
from dieselfs.limits import MASTER_PATIENCE_S
from dieselfs_client.mastership import Mastership, lock_path

TERMS = Terms("data", "train", 5, b"d" * 32)

HOLDER = """
import sys
from pathlib import Path
from dieselfs_client.mastership import Mastership
claim = Mastership(Path(sys.argv[1]), int(sys.argv[2]))
print(claim.try_take(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return lock_path(tmp_path / "runtime", TERMS, b"f" * 16)


@contextmanager
def other_process(path: Path, rank: int) -> Iterator[tuple[subprocess.Popen[bytes], bool]]:
    """A process that has made its claim, and whether it is the master."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(rank)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline() == b"True\n"
        finally:
            process.kill()


def test_there_is_one_master(path: Path) -> None:
    with Mastership(path, 4) as first, Mastership(path, 2) as second, Mastership(path, 4) as third:
        assert second.try_take() and second.try_take()
        assert not first.try_take() and not third.try_take()
        assert [claim.is_master for claim in (first, second, third)] == [False, True, False]


def test_the_smallest_rank_that_lives_goes_first(path: Path) -> None:
    with ExitStack() as stack:
        claims = [stack.enter_context(Mastership(path, rank)) for rank in (3, 1, 2)]
        assert [claim.try_take() for claim in claims] == [False, True, False]
        claims[1].__exit__(None, None, None)
        assert [claim.try_take() for claim in (claims[0], claims[2])] == [False, True]
        stack.pop_all()
        for claim in (claims[0], claims[2]):
            claim.__exit__(None, None, None)


def test_a_master_stays_one_when_a_smaller_rank_comes(path: Path) -> None:
    with Mastership(path, 5) as master:
        assert master.try_take()
        with Mastership(path, 0) as late:
            assert not late.try_take() and not late.try_take(has_waited=True)
            assert master.is_master


async def test_a_killed_master_is_followed_at_once(path: Path) -> None:
    with other_process(path, 0) as (process, is_master), Mastership(path, 1) as heir:
        assert is_master and not heir.try_take()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(heir.take)
            await trio.testing.wait_all_tasks_blocked()
            assert not heir.is_master
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert heir.is_master


async def test_a_smaller_rank_that_does_not_take_it_is_waited_for_a_while(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with Mastership(path, 0), Mastership(path, 1) as heir:
        await heir.take()
        assert heir.is_master
        assert MASTER_PATIENCE_S <= trio.current_time() < MASTER_PATIENCE_S + 1


async def test_waiting_may_be_cancelled(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    with Mastership(path, 0) as master, Mastership(path, 1) as heir:
        assert master.try_take()
        with trio.move_on_after(100) as waiting:
            await heir.take()
        assert waiting.cancelled_caught and not heir.is_master


def test_jobs_have_locks_of_their_own(path: Path, tmp_path: Path) -> None:
    folder = path.parent
    others = [
        lock_path(folder, replace(TERMS, dataset="other"), b"f" * 16),
        lock_path(folder, replace(TERMS, job="t" * 128), b"f" * 16),
        lock_path(folder, TERMS, b"g" * 16),
    ]
    with ExitStack() as stack:
        for each in (path, *others):
            assert stack.enter_context(Mastership(each, 1)).try_take()
        assert oct(folder.stat().st_mode)[-3:] == "700" and oct(path.stat().st_mode)[-3:] == "600"


def test_a_folder_that_others_reach_into_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o755)
    with pytest.raises(AccessDenied, match="0700"):
        Mastership(path, 1)
    path.parent.rmdir()
    path.parent.write_bytes(b"")
    with pytest.raises(Unavailable, match="lock of the job"):
        Mastership(path, 1)
