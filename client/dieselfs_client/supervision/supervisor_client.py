"""A daemon's client of its supervisor. This module uses the socket between them.

The daemon sends heartbeats, and descriptors that must outlive it, by name. The supervisor sends orders.
"""

import logging
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from enum import StrEnum

import trio

from dieselfs_client.supervision.control_channel import ControlChannel, receive_inheritance

BEAT_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class Command(StrEnum):
    STOP = "stop"
    """Unmount, and end; the second time, at once. Also sent by `orders` when the supervisor has ended."""
    YIELD = "yield"
    """End without unmounting: another daemon takes over."""


class SupervisorClient:
    """Made by a standby daemon: waits until the daemon must serve, and has received the kept descriptors.

    - `inherited`: descriptors of an earlier daemon, by name; the code that takes one closes it
    - `is_clean`: that daemon left no request unanswered
    - `process`: the supervisor

    Raises ConnectionError if the supervisor has ended. Then used from one trio thread.
    """

    def __init__(self, control_channel: ControlChannel) -> None:
        self._control_channel = control_channel
        self.inherited, how = receive_inheritance(control_channel)
        self.is_clean = how == "clean"
        self.process = control_channel.maker
        self._unsent: deque[tuple[str, str, int | None]] = deque()
        self._has_unsent = trio.Event()

    def tell(self, word: str, about: str = "", descriptor: int | None = None) -> None:
        """Send one of the words of a daemon, as listed in `control_channel.py`; queue it if the channel is full.

        The supervisor holds a bounded number of descriptors and closes the others. If it is slow and this process has
        no free descriptor, `keep` is not sent.
        """
        if not self._unsent and self._is_sent(word, about, descriptor):
            return
        if descriptor is not None:
            try:
                descriptor = os.dup(descriptor)
            except OSError as error:  # no descriptor is left
                _log.warning("%s will not be handed over on restart: %s", about, error.strerror)
                return
        self._unsent.append((word, about, descriptor))
        self._has_unsent.set()

    def tell_last(self, word: str, about: str = "") -> None:
        """As `tell`, before the daemon ends: waits for room on the channel, for SEND_TIMEOUT_S at most."""
        with suppress(OSError):
            self._control_channel.send_patiently(word, about)

    def _is_sent(self, word: str, about: str, descriptor: int | None) -> bool:
        """Send it; False if the channel has no room."""
        try:
            self._control_channel.send(word, about, descriptor)
        except BlockingIOError:
            return False
        except OSError:  # the supervisor has ended, which `orders` reports
            pass
        return True

    async def beat(self) -> None:
        """Send heartbeats of this thread, until cancelled."""
        while True:
            if not self._unsent:
                self._is_sent("beat", "", None)
            await trio.sleep(BEAT_INTERVAL_S)

    async def flush(self) -> None:
        """Send queued messages in their order, until cancelled."""
        while True:
            await self._has_unsent.wait()
            while self._unsent:
                word, about, descriptor = self._unsent[0]
                if not self._is_sent(word, about, descriptor):
                    await trio.lowlevel.wait_writable(self._control_channel)
                    continue
                self._unsent.popleft()
                if descriptor is not None:
                    os.close(descriptor)
            self._has_unsent = trio.Event()

    async def orders(self) -> AsyncGenerator[Command, None]:
        """The orders as they arrive, and STOP when the supervisor has ended."""
        while True:
            await trio.lowlevel.wait_readable(self._control_channel)
            try:
                message = self._control_channel.receive()
            except BlockingIOError:
                continue
            if message is None:
                break
            if message.word in list(Command):
                yield Command(message.word)
        yield Command.STOP
        await trio.sleep_forever()
