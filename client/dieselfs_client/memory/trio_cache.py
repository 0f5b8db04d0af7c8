"""A cache in one trio thread. Each key is fetched once, in a thread, for all that wait for it (single flight).

What is held is decided by a `CachePolicy`. The mount's chunks (`ChunkCache`) and the node's (`NodeCache`) are such
caches. A cancelled wait does not cancel the fetch, and its result is held for the next reader.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Generic

import trio

from dieselfs.cache.policy import CachePolicy, Held, Key
from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.limits import FETCHES_AT_ONCE_MAX, READ_TIMEOUT_S
from dieselfs_client.memory.foreground import Foreground

FAILURE_MEMORY_S = 1.0
"""A failed fetch is not retried for this time: the kernel requests a page twice that it did not get."""

_log = logging.getLogger(__name__)


class _Flight(Generic[Held]):
    """A fetch in flight, or one that failed less than FAILURE_MEMORY_S ago."""

    def __init__(self) -> None:
        self.started_s = trio.current_time()
        self.done = trio.Event()
        self.held: Held | None = None
        self.error: DieselfsError | None = None


class TrioCache(Generic[Key, Held]):
    """Used from one trio thread. Fetches run in `nursery`: cancelling it abandons them, with their threads.

    - `policy` decides what stays; it changes only between checkpoints
    - `load` fetches one; it blocks, may be called from many threads at once, and raises DieselfsError
    - `name` is what to call a key in an error; a key that is an `int` is a whole chunk
    - `foreground` counts the readers that wait
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
        """What is in memory of a key; counts as a use."""
        self.damaged: set[int] = set()
        """Chunks that are known to be damaged."""
        self.policy = policy
        self._load = load
        self._name = name
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._limiter = trio.CapacityLimiter(fetches_at_once)
        self._foreground = foreground or Foreground()
        self._in_flight: dict[Key, _Flight[Held]] = {}  # changes only between checkpoints

    def start(self, key: Key) -> None:
        """Fetch one, unless it is in memory, in flight, failed a moment ago, or is known to be damaged."""
        if key not in self.policy and key not in self.damaged:
            self._flight(key, self._limiter)

    async def fetch(self, key: Key, lane: trio.CapacityLimiter | None = None) -> Held:
        """From memory, or fetched. With a `lane` it is a prefetch, and runs in a thread of that limiter: a reader never
        waits for a thread behind it.

        Raises what fetching raises; Damaged at once for one that was found damaged before; Unavailable if it is in
        flight for longer than the timeout, which starts with the fetch, and when the nursery is cancelled.
        """
        held = self.held(key)
        if held is not None:
            return held
        if key in self.damaged:
            raise Damaged(f"{self._name(key)} is damaged")
        flight = self._flight(key, lane or self._limiter)
        with trio.move_on_at(flight.started_s + self._timeout_s):
            with self._foreground.waiting() if lane is None else nullcontext():
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
                _log.error("%s; its files are now fetched one at a time", error)
        except DieselfsError as error:
            flight.error = error
        except Exception as error:  # a bug in a source costs the reader this read, not the mount
            _log.exception("fetching %s failed", self._name(key))
            flight.error = Unavailable(f"fetching failed: {error!r}")
        finally:
            self.policy.end(key)
            flight.done.set()
        if flight.error is not None and key not in self.damaged:
            await trio.sleep(FAILURE_MEMORY_S)
        del self._in_flight[key]

    def _hold(self, key: Key, held: Held) -> bool:
        """Hold one that has arrived; returns whether it is pinned."""
        return self.policy.add(key, held)
