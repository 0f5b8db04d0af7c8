"""The master of a node: one at a time, the smallest rank, taken over when it dies, however it dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from dieselfs.cluster.node_lock import NodeLock
from dieselfs.limits import MASTER_PATIENCE_S
from dieselfs_client.cluster.role import Election

HOLDER = """
import sys
from pathlib import Path
from dieselfs.cluster.node_lock import NodeLock
from dieselfs_client.cluster.role import Election
claim = Election(NodeLock(Path(sys.argv[1])), int(sys.argv[2]))
print(claim.try_take(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runtime" / "node.job"


def claimed(path: Path, rank: int) -> closing[Election]:
    return closing(Election(NodeLock(path), rank))


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
    with claimed(path, 4) as first, claimed(path, 2) as second, claimed(path, 4) as third:
        assert second.try_take() and second.try_take()
        assert not first.try_take() and not third.try_take()
        assert [each.is_master for each in (first, second, third)] == [False, True, False]


def test_the_smallest_rank_that_lives_goes_first(path: Path) -> None:
    with ExitStack() as stack:
        claims = [stack.enter_context(claimed(path, rank)) for rank in (3, 1, 2)]
        assert [claim.try_take() for claim in claims] == [False, True, False]
        claims[1].close()
        assert [claim.try_take() for claim in (claims[0], claims[2])] == [False, True]
        stack.pop_all()
        for claim in (claims[0], claims[2]):
            claim.close()


def test_a_master_stays_one_when_a_smaller_rank_comes(path: Path) -> None:
    with claimed(path, 5) as master:
        assert master.try_take()
        with claimed(path, 0) as late:
            assert not late.try_take() and not late.try_take(has_waited=True)
            assert master.is_master


async def test_a_killed_master_is_followed_at_once(path: Path) -> None:
    with other_process(path, 0) as (process, is_master), claimed(path, 1) as heir:
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
    with claimed(path, 0), claimed(path, 1) as heir:
        await heir.take()
        assert heir.is_master
        assert MASTER_PATIENCE_S <= trio.current_time() < MASTER_PATIENCE_S + 1


async def test_waiting_may_be_cancelled(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    with claimed(path, 0) as master, claimed(path, 1) as heir:
        assert master.try_take()
        with trio.move_on_after(100) as waiting:
            await heir.take()
        assert waiting.cancelled_caught and not heir.is_master
