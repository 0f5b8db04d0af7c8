"""How warm a job is, asked of members that answer, keep silent, or fail; no thread does what is not told to."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from dieselfs.cluster.member import INCARNATION_BYTES, Member
from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import Unavailable
from dieselfs.limits import WARMTH_TIMEOUT_S
from dieselfs.net.address import TcpAddress
from dieselfs_client.cluster.job_warmth import WARMTH_INTERVAL_S, JobWarmth, job_fields

HALF = Warmth(50, 100)


def member(number: int) -> Member:
    return Member(f"node-{number}", number, TcpAddress("127.0.0.1", 1), 1 << 30, bytes(INCARNATION_BYTES))


class Peers:
    """Members that answer at once, but for those that are `silent` or `dead`."""

    def __init__(self, count: int) -> None:
        self.members = [member(number) for number in range(count)]
        self.silent: set[str] = set()
        self.dead: set[str] = set()
        self.asked: list[str] = []
        self.told: list[str] = []

    def ask(self, member: Member, is_to_warm: bool) -> Warmth:
        (self.told if is_to_warm else self.asked).append(member.node)
        if member.node in self.dead:
            raise Unavailable("no answer")
        return HALF

    def warmth(self) -> JobWarmth:
        return JobWarmth(lambda: self.members, self.ask)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    """What is done in threads is done at once, or never."""
    peers = Peers(3)

    async def run_sync(function: Callable[..., Any], member: Member, *arguments: object, **_: object) -> Any:
        await trio.lowlevel.checkpoint()
        if member.node in peers.silent:
            peers.asked.append(member.node)
            await trio.sleep_forever()
        return function(member, *arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return peers


async def test_who_does_not_answer_in_time_is_unknown(
    peers: Peers, autojump_clock: trio.testing.MockClock
) -> None:
    peers.silent, peers.dead = {"node-1"}, {"node-2"}
    found = await peers.warmth().of_others()
    assert found == {"node-0": HALF, "node-1": None, "node-2": None}
    assert trio.current_time() == WARMTH_TIMEOUT_S


async def test_the_nodes_are_asked_no_more_often_than_the_interval(
    peers: Peers, autojump_clock: trio.testing.MockClock
) -> None:
    warmth = peers.warmth()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(warmth.of_others)
    assert len(peers.asked) == 3
    peers.members.pop()
    assert await warmth.of_others() == {"node-0": HALF, "node-1": HALF}
    await trio.sleep(WARMTH_INTERVAL_S)
    await warmth.of_others()
    assert len(peers.asked) == 5


async def test_each_node_is_told_once_and_the_late_as_soon_as_they_answer(
    peers: Peers, autojump_clock: trio.testing.MockClock
) -> None:
    peers.dead = {"node-1"}
    warmth = peers.warmth()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(warmth.run)
        await trio.sleep(10)
        assert not peers.told, "nobody wanted it to be warmed"
        warmth.warm()
        await trio.sleep(10)
        assert peers.told.count("node-0") == peers.told.count("node-2") == 1
        peers.dead.clear()
        peers.members.append(member(7))
        await trio.sleep(10)
        before = peers.told.count("node-1")
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert peers.told.count("node-1") == before and peers.told.count("node-7") == 1


def test_what_it_tells_of_a_job() -> None:
    told = job_fields("training", "b", {"b": HALF, "a": Warmth(100, 100, 1), "c": None}, 999)
    fields = told["job"]
    assert told["node"] == fields["nodes"]["b"] and fields["name"] == "training"
    assert (fields["pinned_bytes"], fields["wanted_bytes"], fields["share"]) == (150, 300, 0.5)
    assert (fields["damaged_chunks"], told["dataset_bytes"]) == (1, 999)
    assert fields["unknown"] == ["c"] and list(fields["nodes"]) == ["a", "b"]
    assert fields["nodes"]["b"] == {
        "pinned_bytes": 50,
        "wanted_bytes": 100,
        "damaged_chunks": 0,
        "share": 0.5,
    }
