"""A cache in one trio thread. Each key is fetched once, in a thread, for all tasks that wait for it (single flight).

A `CachePolicy` decides which keys are held. `ChunkCache` (of a mount) and `NodeCache` (of a node) are such caches. A
cancelled wait does not cancel the fetch; its result is held for the next reader.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf
from typing import Generic

import trio

from dieselfs.cache.policy import CachePolicy, Held, Key
from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.limits import FETCHES_AT_ONCE_MAX, READ_TIMEOUT_S

FAILURE_MEMORY_S = 1.0
"""A failed fetch is not retried for this time: the kernel requests a page again after an error."""

_log = logging.getLogger(__name__)


class Foreground:
    """Counts the readers that wait for bytes: prefetches pause for them. Used from one trio thread; a node has one."""

    def __init__(self) -> None:
        self.readers = 0
        """How many wait now."""
        self._quiet = trio.Event()  # set and replaced when the last wait ends
        self._quiet_since_s = -inf

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A reader waits for a fetch in this block."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            if not self.readers:
                self._quiet_since_s = trio.current_time()
                self._quiet.set()
                self._quiet = trio.Event()

    async def quiet(self, for_s: float) -> None:
        """Wait until no reader has waited for this time, which bridges the pauses of a sequential reader. Returns at
        once, without a checkpoint, if this is already so.
        """
        while self.readers or (left_s := self._quiet_since_s + for_s - trio.current_time()) > 0:
            if self.readers:
                await self._quiet.wait()
            else:
                await trio.sleep(left_s)


class _Flight(Generic[Held]):
    """A fetch in flight, or one that failed less than FAILURE_MEMORY_S ago."""

    def __init__(self) -> None:
        self.started_s = trio.current_time()
        self.done = trio.Event()
        self.held: Held | None = None
        self.error: DieselfsError | None = None


class TrioCache(Generic[Key, Held]):
    """Used from one trio thread. Fetches run in `nursery`: cancelling it abandons them, with their threads.

    - `policy` decides which keys stay; it changes only between checkpoints
    - `load` fetches a key; it blocks, may be called from many threads at once, and raises DieselfsError
    - `name` returns the name of a key for errors; a key that is an `int` is a whole chunk
    - `foreground` counts the waiting readers
    """

    def __init__(
        self,
        policy: CachePolicy[Key, Held],
        load: Callable[[Key], Held],
        name: Callable[[Key], str],
        nursery: trio.Nursery,
        timeout_s: float = READ_TIMEOUT_S,
        fetches_at_once: int = FETCHES_AT_ONCE_MAX,
        foreground: Foreground | None = None,
    ) -> None:
        self.held: Callable[[Key], Held | None] = (
            policy.get if policy.pinned_max_bytes else policy.get_evictable
        )
        """The content of a key, if it is in memory; counts as a use."""
        self.damaged: set[int] = set()
        """Chunks that were found damaged."""
        self.policy = policy
        self._load = load
        self._name = name
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._limiter = trio.CapacityLimiter(fetches_at_once)
        self._foreground = foreground or Foreground()
        self._in_flight: dict[Key, _Flight[Held]] = {}  # changes only between checkpoints

    def start(self, key: Key) -> None:
        """Fetch a key, unless it is in memory, in flight, damaged, or failed less than FAILURE_MEMORY_S ago."""
        if key not in self.policy and key not in self.damaged:
            self._flight(key, self._limiter)

    async def fetch(self, key: Key, limiter: trio.CapacityLimiter | None = None) -> Held:
        """From memory, or fetched. With a `limiter` it is a prefetch in a thread of that one, so no reader waits for a
        thread behind it.

        Raises the errors of `load`; Damaged at once for a key that was found damaged before; Unavailable when the
        timeout, which starts with the fetch, has passed, and when the nursery is cancelled.
        """
        held = self.held(key)
        if held is not None:
            return held
        if key in self.damaged:
            raise Damaged(f"{self._name(key)} is damaged")
        flight = self._flight(key, limiter or self._limiter)
        with trio.move_on_at(flight.started_s + self._timeout_s):
            with self._foreground.waiting() if limiter is None else nullcontext():
                await flight.done.wait()
        if flight.held is not None:
            return flight.held
        if flight.error is not None:
            raise type(flight.error)(*flight.error.args)
        if flight.done.is_set():
            raise Unavailable(f"{self._name(key)} is no longer fetched: this node is stopping")
        raise Unavailable(f"{self._name(key)} did not arrive within {self._timeout_s:g} s")

    def _flight(self, key: Key, limiter: trio.CapacityLimiter) -> _Flight[Held]:
        flight = self._in_flight.get(key)
        if flight is None:
            flight = self._in_flight[key] = _Flight()
            self.policy.begin(key)
            self._nursery.start_soon(self._fly, key, flight, limiter)
        return flight

    async def _fly(self, key: Key, flight: _Flight[Held], limiter: trio.CapacityLimiter) -> None:
        try:
            flight.held = await trio.to_thread.run_sync(
                self._load, key, abandon_on_cancel=True, limiter=limiter
            )
            self._hold(key, flight.held)
        except Damaged as error:
            flight.error = error
            if isinstance(key, int):
                self.damaged.add(key)
                _log.error("%s; its files are now fetched one by one", error)
        except DieselfsError as error:
            flight.error = error
        except Exception as error:  # a bug in a source fails this read, not the mount
            _log.exception("fetching %s failed", self._name(key))
            flight.error = Unavailable(f"fetching failed: {error!r}")
        finally:
            self.policy.end(key)
            flight.done.set()
        if flight.error is not None and key not in self.damaged:
            await trio.sleep(FAILURE_MEMORY_S)
        del self._in_flight[key]

    def _hold(self, key: Key, held: Held) -> bool:
        """Hold a key that has arrived; returns whether it is pinned."""
        return self.policy.add(key, held)
