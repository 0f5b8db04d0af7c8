"""What the caches of a mount and of a node have in common; each of them has tests of its own, too."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from threading import Event

import pytest
import trio
import trio.testing

from dieselfs.cache.policy import CachePolicy
from dieselfs.errors import Damaged, NoRoom, Unavailable
from dieselfs_client.memory.trio_cache import FAILURE_MEMORY_S, Foreground, TrioCache
from tests.support.still_time import run_in_still_time, time_flies


class Source:
    """Brings the name of a key, unless it is to fail; counts."""

    def __init__(self) -> None:
        self.fetched: list[int] = []
        self.error: Exception | None = None

    def bring(self, key: int) -> str:
        self.fetched.append(key)
        if self.error is not None:
            raise self.error
        return f"key {key}"


def run(scenario: Callable[[TrioCache[int, str], Source], Awaitable[None]]) -> list[int]:
    """Play a scenario with room for two pinned and one evictable; returns what was fetched."""
    source = Source()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            policy = CachePolicy[int, str](lambda _: 10, 20, 10)
            await scenario(TrioCache(policy, source.bring, str, nursery, foreground=Foreground()), source)
            nursery.cancel_scope.cancel()

    run_in_still_time(main)
    return source.fetched


def test_what_is_held_is_not_fetched_again() -> None:
    async def scenario(cache: TrioCache[int, str], source: Source) -> None:
        for key in (0, 1, 2, 0, 1, 2, 3, 2):
            assert await cache.fetch(key) == f"key {key}"
        cache.start(0)
        assert cache.held(0) == "key 0" and cache.held(3) is None

    assert run(scenario) == [0, 1, 2, 3, 2]


def test_what_is_started_is_joined() -> None:
    async def scenario(cache: TrioCache[int, str], source: Source) -> None:
        cache.start(0)
        assert cache.held(0) is None
        assert await cache.fetch(0) == "key 0"

    assert run(scenario) == [0]


def test_damage_is_remembered_for_good_and_any_other_failure_for_a_moment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cache: TrioCache[int, str], source: Source) -> None:
        for key, source.error in enumerate((Damaged("bits flipped"), NoRoom("no memory"))):
            for _ in range(2):
                with pytest.raises(type(source.error)):
                    await cache.fetch(key)
            with time_flies():
                await trio.sleep(FAILURE_MEMORY_S * 1.1)
        source.error = None
        assert cache.damaged == {0}
        cache.start(0)
        assert await cache.fetch(1) == "key 1"

    run(scenario)
    assert caplog.text.count("bits flipped") == 1


# -- single flight -------------------------------------------------------------------------------------------


class Gates:
    """What is fetched arrives when its gate is opened."""

    def __init__(self) -> None:
        self._gates = {key: Event() for key in range(8)}
        self.fetched: list[int] = []

    def load(self, key: int) -> str:
        self.fetched.append(key)
        if not self._gates[key].wait(20):
            raise Unavailable("its gate was never opened")
        return str(key)

    def open(self, key: int) -> None:
        self._gates[key].set()

    @contextmanager
    def opened_in_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            for gate in self._gates.values():
                gate.set()


def gated_cache(gates: Gates, nursery: trio.Nursery, foreground: Foreground) -> TrioCache[int, str]:
    """One fetch at a time for readers."""
    policy = CachePolicy[int, str](lambda _: 10, 0, 10)
    return TrioCache(policy, gates.load, str, nursery, 20, 1, foreground)


async def test_a_reader_does_not_queue_behind_what_is_fetched_ahead() -> None:
    gates = Gates()
    with trio.fail_after(60), gates.opened_in_the_end():
        async with trio.open_nursery() as nursery:
            cache = gated_cache(gates, nursery, Foreground())
            limiter = trio.CapacityLimiter(1)
            nursery.start_soon(cache.fetch, 0, limiter)
            while gates.fetched != [0]:
                await trio.sleep(0.01)
            gates.open(1)
            assert await cache.fetch(1) == "1"  # although only one at a time is fetched for readers
            assert limiter.borrowed_tokens == 1
            gates.open(0)


async def test_a_reader_joins_what_is_fetched_ahead() -> None:
    gates = Gates()
    with trio.fail_after(60), gates.opened_in_the_end():
        async with trio.open_nursery() as nursery:
            cache = gated_cache(gates, nursery, Foreground())
            nursery.start_soon(cache.fetch, 0, trio.CapacityLimiter(1))
            await trio.testing.wait_all_tasks_blocked()
            gates.open(0)
            assert await cache.fetch(0) == "0"
            assert gates.fetched == [0]


@pytest.mark.parametrize("is_reader", [True, False])
async def test_only_readers_are_in_the_foreground(is_reader: bool) -> None:
    gates, foreground = Gates(), Foreground()
    with trio.fail_after(60), gates.opened_in_the_end():
        async with trio.open_nursery() as nursery:
            cache = gated_cache(gates, nursery, foreground)
            nursery.start_soon(cache.fetch, 0, None if is_reader else trio.CapacityLimiter(1))
            await trio.testing.wait_all_tasks_blocked()
            assert bool(foreground.readers) is is_reader
            gates.open(0)
        assert not foreground.readers


async def test_it_is_quiet_when_the_last_one_has_what_he_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    foreground = Foreground()

    async def wait(duration_s: float) -> None:
        with foreground.waiting():
            await trio.sleep(duration_s)

    async with trio.open_nursery() as nursery:
        for duration_s in (1, 3, 2):
            nursery.start_soon(wait, duration_s)
        await trio.testing.wait_all_tasks_blocked()
        assert foreground.readers
        await foreground.quiet(0)
        assert trio.current_time() == 3.0 and not foreground.readers


async def test_who_comes_again_in_a_moment_is_waited_for_as_well(
    autojump_clock: trio.testing.MockClock,
) -> None:
    foreground = Foreground()

    async def read_on() -> None:
        for _ in range(3):
            with foreground.waiting():
                await trio.sleep(1)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_on)
        await trio.testing.wait_all_tasks_blocked()
        await foreground.quiet(0.75)
        assert trio.current_time() == 4.0 + 0.75
        await foreground.quiet(0.75)
        assert trio.current_time() == 4.75


async def test_one_who_gives_up_waits_no_longer() -> None:
    foreground = Foreground()
    with trio.CancelScope() as scope, foreground.waiting():
        scope.cancel()
        await trio.sleep_forever()
    assert not foreground.readers
