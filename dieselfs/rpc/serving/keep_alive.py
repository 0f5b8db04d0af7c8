"""Keeps a connection alive during a long call: an empty message tells the client that the server still works on it.
This module waits for sockets.

So a client need not wait long for a server that hangs, and the server notices that the client has gone.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from dieselfs.limits import KEEP_ALIVE_S
from dieselfs.process.companion import accompanied
from dieselfs.rpc.serving.connection import ClientConnection

T = TypeVar("T")


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
