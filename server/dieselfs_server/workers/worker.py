"""A worker's end of the channel to its parent (`parent.py`). This module uses sockets."""

import logging
import math
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial

import trio

from dieselfs.net.sockets import receive_with_descriptors
from dieselfs_server.reloading import LIVE_BYTES_MAX, LiveSettings
from dieselfs_server.workers.parent import BEAT_S, MESSAGE_BYTES_MAX
from dieselfs_server.workers.shared import Shared

NUMBERS_AT_ONCE_MAX = 100
"""Of connections that have ended, in one message."""

log = logging.getLogger(__name__)


class Worker:
    """`place`: 0 for the worker that also does what one process of a server does; `count`: of all workers. `reason`:
    why the worker before it was replaced, or empty.
    """

    def __init__(
        self, place: int, count: int, channel: socket.socket, shared: Shared, reason: str = ""
    ) -> None:
        self.place, self.count, self.shared, self.reason = place, count, shared, reason
        self._channel = channel
        self._changed, self.changes = trio.open_memory_channel[LiveSettings](math.inf)
        self._ended: list[int] = []  # changed only between checkpoints
        self._has_ended = trio.Event()

    @property
    def is_first(self) -> bool:
        return self.place == 0

    @property
    def others(self) -> list[int]:
        """The places of the other workers."""
        return [place for place in range(self.count) if place != self.place]

    def ready(self) -> None:
        """Tell the parent that this worker takes connections."""
        self._channel.send(b"ready")

    def failed(self, error: Exception) -> None:
        """Tell the parent why this worker ends."""
        text = f"failed {type(error).__name__} {' '.join(str(error).splitlines())}"
        self._channel.send(text.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX])

    async def accepted(
        self, has_tls: bool
    ) -> AsyncIterator[tuple[trio.SocketStream, bool, Callable[[], None]]]:
        """The connections that the parent gives to this worker, for `RpcServer.serve_accepted`; ends with it. Settings
        that it sends go to `changes`.
        """
        self._channel.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(self._channel)
            descriptors: list[int] = []
            try:
                content, _ = receive_with_descriptors(self._channel, LIVE_BYTES_MAX, descriptors)
            except BlockingIOError:
                continue
            if not content:
                return
            if content.startswith(b"{"):
                self._changed.send_nowait(LiveSettings.decode(content))
                continue
            number = int(content)
            if not descriptors:  # this process has no descriptors left
                log.error("cannot take a client: too many open files")
                self._note_end(number)
                continue
            connection = socket.socket(fileno=descriptors[0])
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
            is_encrypted = has_tls and connection.family != socket.AF_UNIX
            yield stream, is_encrypted, partial(self._note_end, number)

    def _note_end(self, number: int) -> None:
        self._ended.append(number)
        self._has_ended.set()

    async def tell_ended(self) -> None:
        """Tell the parent which connections have ended, or at least that the event loop runs, until cancelled."""
        while True:
            with trio.move_on_after(BEAT_S):
                await self._has_ended.wait()
            self._has_ended = trio.Event()
            await trio.lowlevel.wait_writable(self._channel)
            numbers, self._ended = self._ended[:NUMBERS_AT_ONCE_MAX], self._ended[NUMBERS_AT_ONCE_MAX:]
            try:
                self._channel.send(b"gone " + b" ".join(b"%d" % number for number in numbers))
            except BlockingIOError:
                self._ended = numbers + self._ended
            except OSError:  # the parent is gone
                return
            if self._ended:
                self._has_ended.set()
