"""Warming: what memory can keep is fetched before anybody asks, in the background, and gives way to whoever reads.

    which chunk next     in an order of the node's own, of those that are not here and for which there is room
    when                 while nobody has waited for a fetch of his own for a moment; a lane works WARM_SHARE of its
                         time, and all of them together no faster than a rate, if there is one

Each load runs in a lane of its own beside those of readers, so that none of them ever waits for its turn behind it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.errors import Damaged, DieselfsError
from dieselfs.limits import WARM_AGAIN_S, WARM_LOADS_AT_ONCE_MAX, WARM_QUIET_S, WARM_SHARE
from dieselfs_client.foreground import Foreground

_log = logging.getLogger(__name__)


class Warmable(Protocol):
    """What is filled: a shelf, or the stock of a mount."""

    def lacks(self, chunk: int) -> bool:
        """Whether a chunk is not here for good, and may be had: it is not known to be damaged."""
        ...

    def has_room(self, chunk: int) -> bool:
        """Whether it would be kept."""
        ...

    async def bring(self, chunk: int, lane: trio.CapacityLimiter) -> None:
        """Fetch a chunk, to keep it, in a thread of this `lane`. Raises DieselfsError."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a node is warmed. `share`: of its time that each lane works; `rate_bytes`: a second, 0 for no limit."""

    lanes: int = WARM_LOADS_AT_ONCE_MAX
    share: float = WARM_SHARE
    rate_bytes: int = 0


def rotated(chunks: npt.NDArray[np.int64], place: int, places: int) -> list[int]:
    """Chunks in an order that begins `place / places` of the way through: so the nodes of a job, each at its own place,
    do not go through the store side by side.
    """
    first = len(chunks) * place // max(places, 1)
    order: list[int] = np.roll(chunks, -first).tolist()
    return order


def missing(order: Iterable[int], store: Warmable) -> Iterator[int]:
    """The chunks to bring, each looked at when it is its turn."""
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
        self._lanes = trio.CapacityLimiter(self._pace.lanes)  # never more in use, so nothing waits for one
        self._begins = trio.Event()
        self._free_s = -np.inf  # when the next load may begin, by the rate
        self._is_wanted = False
        self._is_to_go_on = False
        self.is_under_way = False
        """Whether there was more to fetch when it was last looked."""

    def start(self) -> None:
        """Begin, unless it is under way; what is not here is looked for anew."""
        self._is_wanted = self.is_under_way = True
        self._begins.set()

    def look_again(self) -> None:
        """What the node should have is different now: if it was ever to be warmed, that goes on with it."""
        if self._is_wanted:
            self._is_to_go_on = True
            self.start()

    async def run(self) -> None:
        """Warm whenever it was started, until cancelled. What is on its way then comes, and is kept."""
        while True:
            await self._begins.wait()
            self._is_to_go_on = False
            chunks = missing(self._order(), self._store)
            async with trio.open_nursery() as nursery:
                for _ in range(self._pace.lanes):
                    nursery.start_soon(self._work, chunks)
            if not self._is_to_go_on:
                self.is_under_way = False
                self._begins = trio.Event()

    async def _work(self, chunks: Iterator[int]) -> None:
        """One lane: chunk after chunk, of those that all lanes share."""
        for chunk in chunks:
            await self._turn(self._length_bytes(chunk))
            began_s = trio.current_time()
            rest_s = 0.0
            try:
                await self._store.bring(chunk, self._lanes)
            except DieselfsError as error:
                _log.warning("fetched ahead of readers: %s", error)
                if not isinstance(error, Damaged):  # which is known from now on
                    self._is_to_go_on, rest_s = True, WARM_AGAIN_S
            rest_s += (trio.current_time() - began_s) * (1 / self._pace.share - 1)
            await trio.sleep(rest_s)

    async def _turn(self, length_bytes: int) -> None:
        """Until nobody waits for anything, and the rate allows so many bytes more."""
        await self._foreground.quiet(WARM_QUIET_S)
        while (wait_s := self._free_s - trio.current_time()) > 0:
            await trio.sleep(wait_s)
            await self._foreground.quiet(WARM_QUIET_S)
        if self._pace.rate_bytes:
            self._free_s = trio.current_time() + length_bytes / self._pace.rate_bytes
