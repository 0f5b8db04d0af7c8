"""Fetches under way: however many want a thing, it is fetched once, by a *flight*, and all of them wait for that.

A flight belongs to nobody who waits: whoever gives up leaves it in the air, and what it brings is kept for the next.
"""

import logging
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Generic, TypeVar

import trio

from dieselfs.errors import DieselfsError, Unavailable
from dieselfs_client.foreground import Foreground

FAILURE_MEMORY_S = 1.0
"""A fetch that failed is not tried again for so long: the kernel asks twice for a page that it did not get."""

Key = TypeVar("Key", bound=Hashable)
Cargo = TypeVar("Cargo")

_log = logging.getLogger(__name__)


class _Flight(Generic[Cargo]):
    """A fetch under way, or one that failed a moment ago."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.landed = trio.Event()
        self.cargo: Cargo | None = None
        self.error: DieselfsError | None = None


class Flights(Generic[Key, Cargo]):
    """Used from one trio thread. Flights run in `nursery`: cancelling it abandons them, with their threads.

    - `bring` fetches; it blocks, may be called from many threads at once, and raises DieselfsError
    - `departs` is called before, `lands` when a fetch is over: with what came, or with what went wrong; it returns
      whether a failure is to be remembered for a moment
    - `name` is what to call a thing in an error
    - `foreground` hears of those who wait
    """

    def __init__(
        self,
        bring: Callable[[Key], Cargo],
        departs: Callable[[Key], None],
        lands: Callable[[Key, Cargo | None, DieselfsError | None], bool],
        name: Callable[[Key], str],
        nursery: trio.Nursery,
        timeout_s: float,
        at_once: int,
        foreground: Foreground | None = None,
    ) -> None:
        self._bring = bring
        self._departs = departs
        self._lands = lands
        self._name = name
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._limiter = trio.CapacityLimiter(at_once)
        self._foreground = foreground or Foreground()
        self._flights: dict[Key, _Flight[Cargo]] = {}  # changes only between checkpoints

    def start(self, key: Key) -> None:
        """Fetch a thing, unless it is on its way, or failed a moment ago."""
        self._flight(key, self._limiter)

    def is_underway(self, key: Key) -> bool:
        """Whether a thing is on its way, or failed a moment ago."""
        return key in self._flights

    async def wait(self, key: Key, lane: trio.CapacityLimiter | None = None) -> Cargo:
        """A thing, when it is there. With a `lane`, nobody needs it yet: it is fetched in a thread of that one, so that
        no reader waits for his turn behind it.

        Raises what fetching it raised; Unavailable if it is longer on its way than the limit, also when another had
        asked for it, and when the flights are abandoned.
        """
        flight = self._flight(key, lane or self._limiter)
        with trio.move_on_at(flight.started_s + self._timeout_s):
            with self._foreground.waiting() if lane is None else nullcontext():
                await flight.landed.wait()
        if flight.error is not None:
            raise type(flight.error)(*flight.error.args)
        if flight.cargo is None and flight.landed.is_set():
            raise Unavailable(f"{self._name(key)} is not fetched any more: this node is stopping")
        if flight.cargo is None:
            raise Unavailable(f"{self._name(key)} did not come within {self._timeout_s:g} s")
        return flight.cargo

    def _flight(self, key: Key, limiter: trio.CapacityLimiter) -> _Flight[Cargo]:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(trio.current_time())
            self._nursery.start_soon(self._fly, key, flight, limiter)
            self._departs(key)
        return flight

    async def _fly(self, key: Key, flight: _Flight[Cargo], limiter: trio.CapacityLimiter) -> None:
        is_remembered = False
        try:
            flight.cargo = await trio.to_thread.run_sync(
                self._bring, key, abandon_on_cancel=True, limiter=limiter
            )
        except DieselfsError as error:
            flight.error = error
        except Exception as error:  # a bug in a source costs the reader this read, not the mount
            _log.exception("fetching %s failed", self._name(key))
            flight.error = Unavailable(f"fetching failed: {error!r}")
        finally:
            is_remembered = self._lands(key, flight.cargo, flight.error)
            flight.landed.set()
        if is_remembered:
            await trio.sleep(FAILURE_MEMORY_S)
        del self._flights[key]
