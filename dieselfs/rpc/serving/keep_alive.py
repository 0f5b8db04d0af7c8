"""Keeps a connection alive during a long call: an empty message tells the client that the server still works on it.
This module waits for sockets.

So a client need not wait long for a server that hangs, and the server notices that the client has gone.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from dieselfs.limits import KEEP_ALIVE_S
from dieselfs.rpc.serving.connection import ClientConnection

T = TypeVar("T")


async def accompanied(work: Callable[[], Awaitable[T]], companion: Callable[[], Awaitable[None]]) -> T:
    """What `work` returns or raises. `companion`, a task that runs beside it, is cancelled then; if it raises before,
    `work` is cancelled, and the error of the companion is raised.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def guarded() -> None:
        try:
            await companion()
        except Exception as error:  # raised after the nursery, without an exception group
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(guarded)
        try:
            results.append(await work())
        except Exception as error:  # as above
            failures.append(error)
        nursery.cancel_scope.cancel()
    if results:
        return results[0]
    raise failures[0]


async def kept_alive(
    connection: ClientConnection,
    work: Callable[[], Awaitable[T]],
    interval_s: float = KEEP_ALIVE_S,
    message: Callable[[], bytes] = bytes,
) -> T:
    """What `work` returns or raises. Meanwhile `message()`, by default empty, is sent every `interval_s`.

    If the client has gone, `work` is cancelled, and the error of the connection is raised.
    """

    async def keep_alive() -> None:
        while True:
            await trio.sleep(interval_s)
            with trio.CancelScope(shield=True):  # a part of a message would break the connection
                await connection.send(message())

    return await accompanied(work, keep_alive)
