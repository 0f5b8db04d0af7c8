"""The supervisor, as a daemon sees it. This module uses the socket between them.

The daemon tells that it lives, and gives what must outlive it: descriptors, by name. The supervisor gives orders.
"""

import logging
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import StrEnum

import trio

from dieselfs_client.supervision.tether import Tether, receive_inheritance

BEAT_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class Order(StrEnum):
    STOP = "stop"
    """Unmount, and end; the second time, at once. Also what it means when the supervisor is gone."""
    YIELD = "yield"
    """End without unmounting: another daemon takes over."""


class Guardian:
    """Made by a daemon that stands by: waits until it is its turn, and it has all that the supervisor keeps.

    - `inherited`: descriptors that were kept from an earlier daemon, by name; whoever takes one closes it
    - `is_clean`: that daemon left no request unanswered
    - `process`: the supervisor

    Raises ConnectionError if the supervisor is gone. Then used from one trio thread.
    """

    def __init__(self, tether: Tether) -> None:
        self._tether = tether
        self.inherited, how = receive_inheritance(tether)
        self.is_clean = how == "clean"
        self.process = tether.maker
        self._unsent: deque[tuple[str, str, int | None]] = deque()
        self._has_unsent = trio.Event()

    def keep(self, name: str, descriptor: int) -> None:
        """Have the supervisor hold a descriptor (a copy of it), in the place of what it held under this name.

        It holds a bounded number of them, and lets go of what is too much; so do we, if it is slow to take them.
        """
        if not self._tell("keep", name, descriptor):
            try:
                waiting = os.dup(descriptor)
            except OSError as error:  # no descriptor is left
                _log.warning("%s would not outlive this daemon: %s", name, error.strerror)
                return
            self._unsent.append(("keep", name, waiting))
            self._has_unsent.set()

    def drop(self, name: str) -> None:
        """The supervisor need not hold that any longer."""
        self._tell_surely("drop", name)

    def tell(self, word: str, about: str = "") -> None:
        """One of the words of a daemon, as listed in `tether.py`."""
        self._tell_surely(word, about)

    def tell_last(self, word: str, about: str = "") -> None:
        """As `tell`, for the last words: waits until the supervisor has them, for a moment, and for nothing else."""
        with suppress(OSError):
            self._tether.send_patiently(word, about)

    def _tell_surely(self, word: str, about: str) -> None:
        if not self._tell(word, about, None):
            self._unsent.append((word, about, None))
            self._has_unsent.set()

    def _tell(self, word: str, about: str, descriptor: int | None) -> bool:
        """Say it now; False if it must wait its turn."""
        if self._unsent:
            return False
        try:
            self._tether.send(word, about, descriptor)
        except BlockingIOError:
            return False
        except OSError:  # the supervisor is gone, which `orders` finds
            pass
        return True

    async def beat(self) -> None:
        """Tell that this thread lives, until cancelled."""
        while True:
            if not self._unsent:
                self._tell("beat", "", None)
            await trio.sleep(BEAT_INTERVAL_S)

    async def flush(self) -> None:
        """Send what had no room, in its order, until cancelled."""
        while True:
            await self._has_unsent.wait()
            while self._unsent:
                word, about, descriptor = self._unsent[0]
                try:
                    self._tether.send(word, about, descriptor)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._tether)
                    continue
                except OSError:
                    pass  # as above
                self._unsent.popleft()
                if descriptor is not None:
                    os.close(descriptor)
            self._has_unsent = trio.Event()

    async def orders(self) -> AsyncIterator[Order]:
        """The orders as they come, and STOP when the supervisor is gone."""
        while True:
            await trio.lowlevel.wait_readable(self._tether)
            try:
                message = self._tether.receive()
            except BlockingIOError:
                continue
            if message is None:
                break
            if message.word in list(Order):
                yield Order(message.word)
        yield Order.STOP
        await trio.sleep_forever()
