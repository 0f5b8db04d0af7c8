"""Membership: what a node knows of its job, through servers that are away, that lie, and that forget."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
import trio
import trio.testing

from dieselfs.cluster.member import Member
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import AccessDenied, AlreadyExists, DieselfsError, NotFound, Unavailable
from dieselfs.limits import GIB
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.members import JobId
from dieselfs.rpc.members import MembershipList as listed
from dieselfs_client.cluster.membership import JOB_LEAVE_TIMEOUT_S, Members, Membership, RemoteRegistry
from tests.support.server import RunningServer

SECRET = JobSecret(b"s" * 32)
TERMS = JobId("letters", "train", 1, b"d" * 32)

Answer = listed | DieselfsError


def member(node: str) -> Member:
    return Member(node, 0, TcpAddress("127.0.0.1", 7071), GIB, node.encode().ljust(16))


def sealed(*nodes: str, secret: JobSecret = SECRET) -> tuple[bytes, ...]:
    return tuple(secret.seal(member(node), TERMS) for node in nodes)


class ScriptedRegistry(RemoteRegistry):
    """Answers as it was told to, then for ever with the last answer; keeps what it was asked, and when."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[float, Member, int]] = []
        self.left = 0
        self.is_silent = False

    async def join(self, sealed: bytes, known_version: int) -> listed:
        self.asked.append((trio.current_time(), SECRET.open(sealed, TERMS), known_version))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, DieselfsError):
            raise answer
        return answer

    async def leave(self, sealed: bytes) -> None:
        self.left += 1
        if self.is_silent:
            await trio.sleep_forever()
        raise Unavailable("the server is away")


def membership(
    registry: ScriptedRegistry, on_change: Callable[[Members], None] = lambda members: None
) -> Membership:
    return Membership(registry, SECRET, TERMS, member("n1"), on_change, uniform=lambda: 0.0)


def names(members: Iterable[Member]) -> list[str]:
    return [each.node for each in members]


async def test_it_asks_at_the_pace_that_it_is_told(autojump_clock: trio.testing.MockClock) -> None:
    registry = ScriptedRegistry(
        listed(7, 1.0, sealed("n1")),
        listed(8, 5.0, sealed("n1", "n2")),
        listed(8, 5.0, None),
    )
    changes: list[list[str]] = []
    me = membership(registry, lambda members: changes.append(names(members)))
    assert names(me.members) == ["n1"]
    with trio.move_on_after(12):
        await me.run()
    assert [(time_s, known) for time_s, _, known in registry.asked] == [
        (0, 0),
        (1, 7),
        (6, 8),
        (11, 8),
    ]
    assert changes == [["n1", "n2"]], "alone is what it was before"
    assert names(me.members) == ["n1", "n2"]
    assert registry.left == 1
    counted = me.metrics.as_dict()["membership"]
    assert counted == {"requests": 4, "answered": 4, "failed": 0, "changes": 1, "strangers": 0, "out": ""}


async def test_members_that_began_together_do_not_ask_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    registry = ScriptedRegistry(listed(7, 10.0, sealed("n1")))
    with trio.move_on_after(10):
        await Membership(registry, SECRET, TERMS, member("n1"), uniform=lambda: 0.5).run()
    assert [time_s for time_s, *_ in registry.asked] == [0, 9]


async def test_while_the_server_is_away_the_last_list_stands(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    away = Unavailable("the server is away")
    registry = ScriptedRegistry(
        listed(7, 1.0, sealed("n1", "n2")), away, NotFound("lost"), AccessDenied("no"), away
    )
    me = membership(registry)
    with trio.move_on_after(60):
        await me.run()
    assert names(me.members) == ["n1", "n2"]
    assert len(registry.asked) == 60
    assert sum("the last list" in record.message for record in caplog.records) == 1


async def test_a_server_that_is_away_from_the_beginning_leaves_the_node_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    registry = ScriptedRegistry(Unavailable("away"), Unavailable("away"), listed(7, 1.0, sealed("n1", "n2")))
    me = membership(registry)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(me.run)
        await me.wait_for(2)
        assert trio.current_time() == 2
        nursery.cancel_scope.cancel()
    assert me.metrics.numbers()["membership.failed"] == 2


@pytest.mark.parametrize(
    "end", [AlreadyExists("another snapshot"), AccessDenied("no right"), NotFound("no dataset")]
)
async def test_what_a_node_cannot_begin_with(
    autojump_clock: trio.testing.MockClock, end: DieselfsError
) -> None:
    registry = ScriptedRegistry(end)
    with pytest.raises(type(end)):
        await membership(registry).run()
    assert len(registry.asked) == 1 and registry.left == 1


async def test_a_node_that_is_put_out_comes_back_when_it_can(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    out = AlreadyExists("node n1 has a new master")
    both = sealed("n1", "n2")
    registry = ScriptedRegistry(
        listed(7, 1.0, both),
        *(out,) * 9,
        listed(9, 1.0, both),
        out,
        listed(10, 1.0, both),
    )
    me = membership(registry)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(me.run)
        await trio.sleep(100)
        assert me.metrics.as_dict()["membership"]["out"] == "node n1 has a new master"
        assert names(me.members) == ["n1", "n2"], "the last list stands"
        await trio.sleep(300)
        assert me.metrics.as_dict()["membership"]["out"] == ""
        nursery.cancel_scope.cancel()
    times_s = [time_s for time_s, *_ in registry.asked]
    waits_s = [after_s - before_s for before_s, after_s in pairwise(times_s)]
    assert waits_s[:13] == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 1, 2, 1]
    counted = me.metrics.as_dict()["membership"]
    assert counted["failed"] == 10 and counted["requests"] == counted["answered"] + counted["failed"]
    said = [record.message for record in caplog.records if "this node is" in record.message]
    assert len([message for message in said if "is out" in message and "new master" in message]) == 2


async def test_a_node_that_is_read_through_is_not_refused_for_good(
    autojump_clock: trio.testing.MockClock,
) -> None:
    registry = ScriptedRegistry(
        AlreadyExists("another snapshot"), AccessDenied("no right"), listed(7, 1.0, sealed("n1"))
    )
    me = membership(registry)
    with trio.move_on_after(10):
        await me.run(is_resumed=True)
    assert me.metrics.numbers()["membership.answered"] > 0 and me.metrics.as_dict()["membership"]["out"] == ""


async def test_whoever_waits_hears_of_the_first_answer_even_if_nobody_else_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    me = membership(ScriptedRegistry(Unavailable("away"), listed(7, 1.0, sealed("n1"))))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(me.run)
        with trio.fail_after(60):
            await me.wait_for(1)
        assert me.metrics.numbers()["membership.answered"] == 1 and names(me.members) == ["n1"]
        nursery.cancel_scope.cancel()


async def test_strangers_on_the_roll_are_passed_over(autojump_clock: trio.testing.MockClock) -> None:
    theirs = sealed("n4", secret=JobSecret(b"t" * 32))
    registry = ScriptedRegistry(
        listed(7, 1.0, (*sealed("n3"), *theirs, b"rubbish", b"")), listed(7, 1.0, None)
    )
    me = membership(registry)
    with trio.move_on_after(0.5):
        await me.run()
    assert names(me.members) == ["n1", "n3"]
    assert me.metrics.numbers()["membership.strangers"] == 3


async def test_a_server_that_hangs_does_not_keep_it_from_ending(
    autojump_clock: trio.testing.MockClock,
) -> None:
    registry = ScriptedRegistry(listed(7, 1.0, None))
    registry.is_silent = True
    with trio.move_on_after(5):
        await membership(registry).run()
    assert trio.current_time() == 5 + JOB_LEAVE_TIMEOUT_S


async def test_two_nodes_meet_at_a_real_server_and_part(server: RunningServer) -> None:
    client = server.client()
    one, two = (
        Membership(RemoteRegistry(client, TERMS, SECRET), SECRET, TERMS, member(node))
        for node in ("n1", "n2")
    )
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            async with trio.open_nursery() as inner:
                inner.start_soon(two.run)
                await one.wait_for(2)
                await two.wait_for(2)
                assert one.members == two.members == (member("n1"), member("n2"))
                inner.cancel_scope.cancel()
            while len(one.members) > 1:
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    client.close()


async def test_another_snapshot_is_refused_by_a_real_server(server: RunningServer) -> None:
    client = server.client()
    other = replace(TERMS, generation=2, digest=b"e" * 32)
    one = Membership(RemoteRegistry(client, TERMS, SECRET), SECRET, TERMS, member("n1"))
    two = Membership(RemoteRegistry(client, other, SECRET), SECRET, other, member("n2"))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            while not one.metrics.numbers()["membership.answered"]:
                await trio.sleep(0.01)
            with pytest.raises(AlreadyExists, match="generation 1, and node n2 has generation 2"):
                await two.run()
            nursery.cancel_scope.cancel()
    client.close()
