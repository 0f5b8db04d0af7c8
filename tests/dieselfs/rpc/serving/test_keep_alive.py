"""Signs of life during a long call: the client waits on, and a client that has gone cancels the call."""

import socket
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing

from dieselfs.errors import InvalidInput
from dieselfs.rpc.messages import (
    FRAME_HEADER_BYTES,
    KEEP_ALIVE,
    PROGRESS,
    PROGRESS_BYTES,
    decode_progress,
    encode_progress,
)
from dieselfs.rpc.records import CopyProgress
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.keep_alive import accompanied, kept_alive

INTERVAL_S = 0.01
WAIT_S = 60.0


async def run(own: socket.socket, work: Callable[[], Awaitable[str]]) -> str:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(own))
    async with stream:
        with trio.fail_after(WAIT_S):
            return await kept_alive(ClientConnection(stream), work, INTERVAL_S)


def test_empty_messages_are_sent_until_the_work_is_done() -> None:
    client, own = socket.socketpair()
    done = threading.Event()

    def receive() -> None:
        for _ in range(3):
            assert client.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL) == KEEP_ALIVE
        done.set()

    thread = threading.Thread(target=receive)
    thread.start()

    async def work() -> str:
        while not done.is_set():
            await trio.sleep(INTERVAL_S)
        return "done"

    assert trio.run(run, own, work) == "done"
    thread.join(WAIT_S)
    client.close()


def test_progress_is_sent_instead() -> None:
    client, own = socket.socketpair()
    progress = CopyProgress(1, 2, 3, 1 << 60)
    seen = []
    done = threading.Event()

    def receive() -> None:
        assert client.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL) == PROGRESS
        seen.append(decode_progress(client.recv(PROGRESS_BYTES, socket.MSG_WAITALL)))
        done.set()

    thread = threading.Thread(target=receive)
    thread.start()

    async def run() -> None:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(own)) as stream:
            with trio.fail_after(WAIT_S):
                work = partial(trio.to_thread.run_sync, done.wait)
                await kept_alive(
                    ClientConnection(stream), work, INTERVAL_S, lambda: encode_progress(progress)
                )

    trio.run(run)
    thread.join(WAIT_S)
    client.close()
    assert seen == [progress]


def test_work_is_cancelled_when_the_client_has_gone() -> None:
    client, own = socket.socketpair()
    client.close()
    cancelled = []

    async def work() -> str:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(True)

    with pytest.raises(trio.BrokenResourceError):
        trio.run(run, own, work)
    assert cancelled


def test_a_failure_is_raised_as_it_is() -> None:
    client, own = socket.socketpair()

    async def work() -> str:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput, match="no"):
        trio.run(run, own, work)
    client.close()


async def test_the_companion_ends_with_the_work() -> None:
    ended = trio.Event()

    async def companion() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert await accompanied(work, companion) == 7
    assert ended.is_set()


async def test_an_error_of_the_companion_cancels_the_work() -> None:
    cancelled = trio.Event()

    async def companion() -> None:
        raise OSError("gone")

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    with pytest.raises(OSError, match="gone"):
        await accompanied(work, companion)
    assert cancelled.is_set()


async def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await accompanied(work, trio.sleep_forever)


async def test_work_outlives_a_companion_that_returns() -> None:
    async def work() -> int:
        await trio.testing.wait_all_tasks_blocked()
        return 1

    assert await accompanied(work, trio.lowlevel.checkpoint) == 1


async def test_a_cancellation_from_outside_ends_both() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await accompanied(trio.sleep_forever, trio.sleep_forever)
    assert scope.cancelled_caught
