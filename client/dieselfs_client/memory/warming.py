"""Warming: fetches the chunks that memory can pin in the background, and pauses for readers.

    next chunk    in the order of this node, those that are missing and for which there is room
    when          no reader has waited for WARM_QUIET_S; a worker loads for WARM_SHARE of its time, and all together
                  fetch no faster than the rate limit

Loads run in threads of their own, so no reader waits behind one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.errors import Damaged, DieselfsError
from dieselfs_client.memory.trio_cache import Foreground

WARM_LOADS_AT_ONCE_MAX = 2
"""Chunks that warming fetches at the same time, in addition to those that readers wait for."""
WARM_SHARE = 0.8
"""Each of these loads is active for this share of its time, so that network and store have time for other requests."""
WARM_QUIET_S = 0.1
"""Warming pauses until no reader has waited for a fetch for this long."""
WARM_AGAIN_S = 5.0
"""Interval between retries of failed loads, which come after all others."""

_log = logging.getLogger(__name__)


class Warmable(Protocol):
    """The memory to warm: a node cache, or the page cache through the prefetcher of a mount."""

    def lacks(self, chunk: int) -> bool:
        """Whether a chunk is not pinned, and not known to be damaged."""

    def has_room(self, chunk: int) -> bool:
        """Whether it would be pinned."""

    async def bring(self, chunk: int, limiter: trio.CapacityLimiter) -> None:
        """Fetch a chunk in a thread of this `limiter`, and pin it. Raises DieselfsError."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate of warming. `share`: of its time that each worker loads; `rate_bytes`: per second, 0 for no limit."""

    workers: int = WARM_LOADS_AT_ONCE_MAX
    share: float = WARM_SHARE
    rate_bytes: int = 0


def rotated(chunks: npt.NDArray[np.int64], place: int, places: int) -> list[int]:
    """The chunks, starting at `place / places` of the order: the nodes of a job read different parts of the store."""
    first = len(chunks) * place // max(places, 1)
    order: list[int] = np.roll(chunks, -first).tolist()
    return order


def missing(order: Iterable[int], store: Warmable) -> Iterator[int]:
    """The chunks to fetch; each is checked when it is next."""
    return (chunk for chunk in order if store.lacks(chunk) and store.has_room(chunk))


class Warming:
    """Used from one trio thread. `order`: the chunks that the node should have; `length_bytes`: of a chunk."""

    def __init__(
        self,
        store: Warmable,
        order: Callable[[], Iterable[int]],
        length_bytes: Callable[[int], int],
        foreground: Foreground,
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._order = order
        self._length_bytes = length_bytes
        self._foreground = foreground
        self._pace = pace or Pace()
        self._threads = trio.CapacityLimiter(self._pace.workers)  # so no worker waits for a thread
        self._begins = trio.Event()
        self._free_s = -np.inf  # when the next load may begin, by the rate
        self._is_wanted = False
        self._is_to_continue = False
        self.is_under_way = False
        """Whether chunks were missing at the last check."""

    def start(self) -> None:
        """Begin, unless warming runs already, and check for missing chunks again."""
        self._is_wanted = self.is_under_way = True
        self._begins.set()

    def look_again(self) -> None:
        """Note that the chunks of the node have changed: continue with the new ones if warming was ever started."""
        if self._is_wanted:
            self._is_to_continue = True
            self.start()

    async def run(self) -> None:
        """Warm after each `start`, until cancelled. Loads in flight then end, and are pinned."""
        while True:
            await self._begins.wait()
            self._is_to_continue = False
            chunks = missing(self._order(), self._store)
            async with trio.open_nursery() as nursery:
                for _ in range(self._pace.workers):
                    nursery.start_soon(self._work, chunks)
            if not self._is_to_continue:
                self.is_under_way = False
                self._begins = trio.Event()

    async def _work(self, chunks: Iterator[int]) -> None:
        """One worker: fetches chunks of the iterator that all workers share."""
        for chunk in chunks:
            await self._turn(self._length_bytes(chunk))
            began_s = trio.current_time()
            rest_s = 0.0
            try:
                await self._store.bring(chunk, self._threads)
            except DieselfsError as error:
                _log.warning("warming: %s", error)
                if not isinstance(error, Damaged):  # which is known from now on
                    self._is_to_continue, rest_s = True, WARM_AGAIN_S
            rest_s += (trio.current_time() - began_s) * (1 / self._pace.share - 1)
            await trio.sleep(rest_s)

    async def _turn(self, length_bytes: int) -> None:
        """Wait until no reader waits, and the rate allows this many bytes."""
        await self._foreground.quiet(WARM_QUIET_S)
        while (wait_s := self._free_s - trio.current_time()) > 0:
            await trio.sleep(wait_s)
            await self._foreground.quiet(WARM_QUIET_S)
        if self._pace.rate_bytes:
            self._free_s = trio.current_time() + length_bytes / self._pace.rate_bytes
