"""Scores of a job that one node has: what others cannot send waits within a bound, and nonsense is refused."""

from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.importance.score_lines import LossBatch
from dieselfs.importance.scored_files import OrderKey
from dieselfs.limits import PEER_SCORES_PATIENCE_S
from dieselfs.telemetry.registry import Registry
from dieselfs_client.cluster import job_scores
from dieselfs_client.cluster.job_nodes import JobNodes
from dieselfs_client.cluster.job_scores import JobScores
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.peer_nodes import CREDENTIAL

SNAPSHOT = pack_entries([TreeEntry(b"%d" % n, 0o100644, 0, b"x") for n in range(20)]).snapshot
FILES = np.array([SNAPSHOT.find(b"%d" % n) for n in range(20)], np.uint32)
BATCH = LossBatch([b"1", b"2", b"3"], np.array([1.0, 2.0, 3.0]))
SUM = np.float64(6).tobytes()
PATIENCE_S = 10.0


class Clock:
    """Runs only while a caller sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


def scores_of(others: list[str], is_master: bool = True, clock: Clock | None = None) -> JobScores:
    """`others` can change later."""
    peers, clock = PeerClient(CREDENTIAL, SNAPSHOT.digest), clock or Clock()
    nodes = JobNodes("me", lambda: [*map(Member.named, others)], lambda: is_master, lambda: peers)
    return JobScores(SNAPSHOT, nodes, Registry(), clock.read, clock.sleep)


def test_a_node_alone_counts_its_own_losses() -> None:
    scores = scores_of([])
    scores.take(BATCH)
    scores.send()
    assert scores.files.scored == 3 and len(scores.order(OrderKey(b"", 1, 1), FILES)) == len(FILES)


def test_losses_wait_for_the_node_that_has_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_scores, "UNSENT_MAX", 6)
    scores = scores_of(["nobody"], is_master=False)
    for _ in range(3):
        scores.take(BATCH)
        with pytest.raises(Unavailable, match="node nobody"):
            scores.send()
    with pytest.raises(Unavailable, match="node nobody"):
        scores.order(OrderKey(b"", 1, 1), FILES)
    assert scores.lost.value == 3 and not scores.files.scored
    with pytest.raises(InvalidInput, match="no file"):
        scores.take(LossBatch([b"none"], np.array([1.0])))


async def test_an_unmount_does_not_wait_for_losses() -> None:
    """An order may hold the lock of what is sent, for a node that does not answer."""
    scores, waited = scores_of(["nobody"], is_master=False), list[bool]()
    released, is_sent, token = Event(), trio.Event(), trio.lowlevel.current_trio_token()

    def peers() -> PeerClient:
        token.run_sync_soon(is_sent.set)
        waited.append(released.wait(PATIENCE_S))
        raise Unavailable("away")

    scores._job._peers = peers
    scores.take(BATCH)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scores.run)
            await is_sent.wait()
            nursery.cancel_scope.cancel()
        assert not waited
    finally:
        released.set()


async def test_an_order_that_nobody_waits_for_asks_no_more() -> None:
    """The thread has one of the places for orders while it lives."""
    scores, tries = scores_of(["nobody"], is_master=False), list[int]()
    released, is_asked, token = Event(), trio.Event(), trio.lowlevel.current_trio_token()
    limiter = trio.CapacityLimiter(1)

    def peers() -> PeerClient:
        tries.append(1)
        token.run_sync_soon(is_asked.set)
        released.wait(PATIENCE_S)
        raise Unavailable("away")

    async def read() -> None:
        ask = partial(scores.order, OrderKey(b"", 1, 1), FILES)
        await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)

    scores._job._peers, scores._sleep = peers, job_scores._pause
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await is_asked.wait()
        nursery.cancel_scope.cancel()
    released.set()
    with trio.fail_after(PATIENCE_S):
        while limiter.borrowed_tokens:
            await trio.sleep(0.01)
    assert tries == [1]


def test_an_order_waits_until_a_lost_node_is_no_longer_listed() -> None:
    clock, others = Clock(), ["lost"]
    scores = scores_of(others, clock=clock)
    scores._job.is_master = lambda: not others  # the scores are at the lost node as long as it is listed

    def sleep(wait_s: float) -> None:
        clock.sleep(wait_s)
        if clock.now_s > 10:
            others.clear()

    scores._sleep = sleep
    order = scores.order(OrderKey(b"", 1, 1), FILES)
    assert len(order) == len(FILES) and 10 < clock.now_s < PEER_SCORES_PATIENCE_S
    others.append("lost")
    assert scores.order(OrderKey(b"", 1, 1), FILES) is order  # a drawn order stays, and nobody is asked


def test_an_order_waits_within_a_bound() -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match="node lost"):
        scores_of(["lost"], is_master=False, clock=clock).order(OrderKey(b"", 1, 1), FILES)
    assert clock.now_s <= PEER_SCORES_PATIENCE_S


@pytest.mark.parametrize(
    ("sent", "bulk", "says"),
    [
        ({"loss_sum": SUM, "losses": 1}, b"1234567", "malformed"),
        ({"loss_sum": b"", "losses": 1}, bytes(8), "malformed"),
        ({"loss_sum": SUM, "losses": -1}, bytes(8), "malformed"),
        ({"loss_sum": np.float64(np.nan).tobytes(), "losses": 1}, bytes(8), "sum of losses is nan"),
        ({"loss_sum": SUM, "losses": 1, "accuracy": b"1"}, bytes(8), "malformed"),
        (
            {"loss_sum": SUM, "losses": 1, "accuracy": np.float64(np.inf).tobytes()},
            bytes(8),
            "accuracies .inf",
        ),
        ({"loss_sum": SUM, "losses": 1}, b"\xff" * 8, "no entry"),
    ],
)
def test_malformed_scores_are_refused(sent: dict[str, Any], bulk: bytes, says: str) -> None:
    scores = scores_of([])
    with pytest.raises(InvalidInput, match=says):
        scores.add_of_peer(SimpleNamespace(**{"accuracy": b""} | sent), bytearray(bulk))
    assert not scores.files.changes


@pytest.mark.parametrize("number", ["-1", "", "x", str(1 << 64), "9" * 30])
def test_orders_of_impossible_numbers_are_refused(number: str) -> None:
    with pytest.raises(InvalidInput, match=r"seed and epoch are"):
        scores_of([]).order_for_peer(SimpleNamespace(folder=b"", seed=number, epoch="1"))


@pytest.mark.parametrize("is_old", [False, True], ids=["", "of a node of an earlier version"])
def test_an_order_brings_the_scores_of_the_job(is_old: bool) -> None:
    """So a mount keeps files by the losses of all mounts, not only by those that were written to it."""
    owner, other = scores_of([]), scores_of(["owner"], is_master=False)
    owner.take(BATCH)
    owner.send()

    def ask_aside(member: Member, method: str, asked: dict[str, Any], *_: object, **__: object) -> bytes:
        return owner.order_for_peer(SimpleNamespace(**asked | ({"has_scores": False} if is_old else {})))

    peers: Any = SimpleNamespace(ask_aside=ask_aside)
    other._job._peers = lambda: peers
    other.files.keep(3, np.ones(len(SNAPSHOT), np.int64), FILES[4:7].tolist())
    key = OrderKey(b"", 1, 1)
    order, known = other.order(key, np.sort(FILES)), owner.files.known(key)
    assert known is not None and order.tolist() == known.tolist()
    important = FILES[1:4].astype(np.int64)
    other.files.read(important)
    assert (other.files.kept().tolist() == sorted(important.tolist())) is not is_old
