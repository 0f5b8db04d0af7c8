"""The supervisor as a daemon sees it, with the test as the supervisor."""

import gc
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import aclosing, suppress

import pytest
import trio
import trio.testing

from dieselfs_client.supervision.control_channel import ControlChannel, Message
from dieselfs_client.supervision.supervisor_client import (
    BEAT_INTERVAL_S,
    UNANSWERED_MAX,
    Command,
    SupervisorClient,
)


@pytest.fixture
def supervisor() -> Iterator[ControlChannel]:
    """Our end; `theirs` is its attribute."""
    ours, theirs = ControlChannel.pair()
    with theirs:
        ours.send("go")
        _theirs[ours] = theirs
        yield ours
    del _theirs[ours]
    ours.close()


_theirs: dict[ControlChannel, socket.socket] = {}


def client_of(supervisor: ControlChannel) -> SupervisorClient:
    return SupervisorClient(ControlChannel(_theirs[supervisor]))


def heard(supervisor: ControlChannel) -> list[Message]:
    messages = []
    with suppress(BlockingIOError):
        while (message := supervisor.receive()) is not None:
            messages.append(message)
    return messages


async def test_it_tells_that_it_lives(
    supervisor: ControlChannel, autojump_clock: trio.testing.MockClock
) -> None:
    supervisor_client = client_of(supervisor)
    with trio.move_on_after(BEAT_INTERVAL_S * 3.5):
        await supervisor_client.beat()
    assert heard(supervisor) == [Message("beat", "", None)] * 4


async def test_orders_come_one_by_one_and_the_end_is_an_order_to_stop(supervisor: ControlChannel) -> None:
    supervisor_client = client_of(supervisor)
    supervisor.send("yield")
    supervisor.send("nonsense")
    supervisor.send("stop")
    orders = supervisor_client.orders()
    assert [await anext(orders), await anext(orders)] == [Command.YIELD, Command.STOP]
    supervisor.close()
    assert await anext(orders) is Command.STOP
    await orders.aclose()


async def test_nothing_is_lost_when_the_supervisor_is_slow(supervisor: ControlChannel) -> None:
    """Not even its place in the order, nor a descriptor that we have closed in the meantime."""
    supervisor_client = client_of(supervisor)
    count = 3000
    memory = os.memfd_create("test")
    for number in range(count):
        supervisor_client.tell("keep", str(number), memory)
        supervisor_client.tell("drop", str(number))
    os.close(memory)
    messages: list[Message] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor_client.flush)
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


async def test_what_no_descriptor_is_left_for_is_not_kept(supervisor: ControlChannel) -> None:
    """A supervisor that is stopped takes nothing, and what waits for it is held twice."""
    gc.collect()  # else descriptors of objects that other tests have left may become free meanwhile
    supervisor_client = client_of(supervisor)
    memory = os.memfd_create("test")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 2000
    resource.setrlimit(resource.RLIMIT_NOFILE, (memory + 100, hard))
    try:
        for number in range(count):
            supervisor_client.tell("keep", str(number), memory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    supervisor_client.tell("ready")
    messages: list[Message] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor_client.flush)
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


async def test_what_is_told_to_a_supervisor_that_is_gone_is_dropped(supervisor: ControlChannel) -> None:
    """The daemon serves on, and is ordered to stop."""
    supervisor_client = client_of(supervisor)
    memory = os.memfd_create("test")
    supervisor.close()
    before = len(os.listdir("/proc/self/fd"))
    supervisor_client.tell("keep", "chunk", memory)
    supervisor_client.tell("ready")
    supervisor_client.tell("drop", "chunk")
    supervisor_client.tell_last("ended")
    assert len(os.listdir("/proc/self/fd")) == before, "nothing waits to be sent"
    os.close(memory)
    async with aclosing(supervisor_client.orders()) as orders:
        with trio.fail_after(60):
            assert await anext(orders) is Command.STOP


async def test_another_supervisor_gets_all_that_is_known_and_kept(
    supervisor: ControlChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the first, which has entrusted its command line to the daemon, and the channel to a later zygote."""
    started: list[ControlChannel] = []

    def start(command: int, end: socket.socket) -> int:
        assert os.pread(command, 7, 0) == b"command"
        started.append(ControlChannel(end.dup()))
        return os.getpid()

    monkeypatch.setattr("dieselfs_client.supervision.supervisor_client.start_supervisor", start)
    supervisor_client = client_of(supervisor)
    memory = os.memfd_create("test")
    os.write(memory, b"command")
    for name in ("supervisor", "status", "zygote-1", "zygote-2", "unknown"):
        supervisor.send("keep", name, memory)
    supervisor.close()
    supervisor_client.tell("keep", "device", memory)
    supervisor_client.tell("keep", "chunk-1", memory)
    supervisor_client.tell("keep", "chunk-2", memory)
    supervisor_client.tell("drop", "chunk-1")
    supervisor_client.tell("mounted", "0:77")
    supervisor_client.tell("ready", "resends")
    messages: list[Message] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor_client.flush)
        orders = supervisor_client.orders()
        nursery.start_soon(anext, orders)
        with trio.fail_after(60):
            while not messages or messages[-1].about != "chunk-2":
                for next_supervisor in started:
                    messages += heard(next_supervisor)
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert [(message.word, message.about) for message in messages] == [
        *(("keep", name) for name in ("supervisor", "status", "zygote-2", "device")),
        ("go", ""),
        ("born", str(os.getpid())),
        ("mounted", "0:77"),
        ("ready", "resends"),
        ("keep", "chunk-2"),
    ]
    assert supervisor_client.process == os.getpid()
    for message in messages:
        if message.descriptor is not None:
            os.close(message.descriptor)
    started[0].close()
    supervisor_client._control_channel.close()
    os.close(memory)


async def test_a_supervisor_that_answers_is_not_killed_and_one_that_does_not_is(
    supervisor: ControlChannel, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: killed.append(process))
    memory = os.memfd_create("test")
    ours, theirs = ControlChannel.pair()
    with theirs:
        ours.send("keep", "supervisor", memory)
        ours.send("go")
        supervisor_client = SupervisorClient(ControlChannel(theirs))
        for answers, expected in ((True, []), (False, [os.getpid()])):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor_client.beat)
                orders = supervisor_client.orders()
                nursery.start_soon(anext, orders)
                for _ in range(UNANSWERED_MAX + 5):
                    await trio.sleep(BEAT_INTERVAL_S)
                    if answers:
                        ours.send("beat")
                nursery.cancel_scope.cancel()
            await orders.aclose()
            assert killed == expected
    ours.close()
    os.close(memory)


def test_what_it_knows_from_the_beginning(supervisor: ControlChannel) -> None:
    supervisor_client = client_of(supervisor)
    assert (supervisor_client.inherited, supervisor_client.is_clean, supervisor_client.process) == (
        {},
        False,
        os.getpid(),
    )
