"""The supervisor as a daemon sees it, with the test as the supervisor."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio
import trio.testing

from dieselfs_client.supervision.guardian import BEAT_INTERVAL_S, Guardian, Order
from dieselfs_client.supervision.tether import Message, Tether


@pytest.fixture
def supervisor() -> Iterator[Tether]:
    """Our end; `theirs` is its attribute."""
    ours, theirs = Tether.pair()
    with theirs:
        ours.send("go")
        _theirs[ours] = theirs
        yield ours
    del _theirs[ours]
    ours.close()


_theirs: dict[Tether, socket.socket] = {}


def guardian_of(supervisor: Tether) -> Guardian:
    return Guardian(Tether(_theirs[supervisor]))


def heard(supervisor: Tether) -> list[Message]:
    messages = []
    with suppress(BlockingIOError):
        while (message := supervisor.receive()) is not None:
            messages.append(message)
    return messages


async def test_it_tells_that_it_lives(supervisor: Tether, autojump_clock: trio.testing.MockClock) -> None:
    guardian = guardian_of(supervisor)
    with trio.move_on_after(BEAT_INTERVAL_S * 3.5):
        await guardian.beat()
    assert heard(supervisor) == [Message("beat", "", None)] * 4


async def test_orders_come_one_by_one_and_the_end_is_an_order_to_stop(supervisor: Tether) -> None:
    guardian = guardian_of(supervisor)
    supervisor.send("yield")
    supervisor.send("nonsense")
    supervisor.send("stop")
    orders = guardian.orders()
    assert [await anext(orders), await anext(orders)] == [Order.YIELD, Order.STOP]
    supervisor.close()
    assert await anext(orders) is Order.STOP
    await orders.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_nothing_is_lost_when_the_supervisor_is_slow(supervisor: Tether) -> None:
    """Not even its place in the order, nor a descriptor that we have closed in the meantime."""
    guardian = guardian_of(supervisor)
    count = 3000
    memory = os.memfd_create("test")
    for number in range(count):
        guardian.keep(str(number), memory)
        guardian.drop(str(number))
    os.close(memory)
    messages: list[Message] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guardian.flush)
        with trio.fail_after(60):
            while len(messages) < 2 * count:
                messages += heard(supervisor)
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert [(message.word, message.about) for message in messages] == [
        (word, str(number)) for number in range(count) for word in ("keep", "drop")
    ]
    for message in messages[::2]:
        assert message.descriptor is not None
        os.close(message.descriptor)


async def test_what_no_descriptor_is_left_for_is_not_kept(supervisor: Tether) -> None:
    """A supervisor that is stopped takes nothing, and what waits for it is held twice."""
    guardian = guardian_of(supervisor)
    memory = os.memfd_create("test")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 2000
    resource.setrlimit(resource.RLIMIT_NOFILE, (memory + 100, hard))
    try:
        for number in range(count):
            guardian.keep(str(number), memory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    guardian.tell("ready")
    messages: list[Message] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guardian.flush)
        with trio.fail_after(60):
            while not messages or messages[-1].word != "ready":
                messages += heard(supervisor)
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    os.close(memory)
    names = [message.about for message in messages[:-1]]
    assert 0 < len(names) < count and names == [str(number) for number in range(len(names))]
    for message in messages[:-1]:
        assert message.descriptor is not None
        os.close(message.descriptor)


async def test_a_supervisor_that_is_gone_troubles_nobody(supervisor: Tether) -> None:
    guardian = guardian_of(supervisor)
    supervisor.close()
    guardian.tell("ready")
    guardian.drop("chunk")
    guardian.tell_last("ended")


def test_what_it_knows_from_the_beginning(supervisor: Tether) -> None:
    guardian = guardian_of(supervisor)
    assert (guardian.inherited, guardian.is_clean, guardian.process) == ({}, False, os.getpid())
