"""The accept loop, in a process that has no descriptors left."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dieselfs.rpc.serving.accept_loop import RETRY_S, accept_each

TIMEOUT_S = 30.0


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Until the end of the block, each new descriptor fails with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


async def test_connections_wait_for_descriptors_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    send, receive = trio.open_memory_channel[trio.SocketStream](8)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with trio.fail_after(TIMEOUT_S), socket.socket() as early, socket.socket() as late:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_each, listener, send.send_nowait, "browser")
            early.connect(listener.socket.getsockname())
            async with await receive.receive():
                await wait_all_tasks_blocked()
            with no_descriptors():
                late.connect(listener.socket.getsockname())
                while not caplog.messages:
                    await trio.sleep(RETRY_S)
                await trio.sleep(2 * RETRY_S)  # for further tries
                assert receive.statistics().current_buffer_used == 0
            async with await receive.receive() as stream:
                late.sendall(b"hello")
                assert await stream.receive_some() == b"hello"
            nursery.cancel_scope.cancel()
    await listener.aclose()
    assert caplog.messages == ["cannot accept a browser: Too many open files"]


async def test_another_error_of_a_listener_is_raised() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await listener.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await accept_each(listener, lambda stream: None, "client")
