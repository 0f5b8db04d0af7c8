"""Snapshots are built in the background once a put has ended, and at intervals while it lasts."""

import pytest
import trio
from trio.testing import MockClock

from dieselfs.errors import Unavailable
from dieselfs_server.datasets.refresh import PAUSE_FACTOR, QUIET_S, STALE_S, Refresh


class Builds:
    """The builds and their times; each takes `duration_s`."""

    def __init__(self, duration_s: float = 0.0, error: Exception | None = None) -> None:
        self.done: list[tuple[str, float]] = []
        self.duration_s, self.error = duration_s, error

    async def __call__(self, dataset: str) -> None:
        self.done.append((dataset, round(trio.current_time() - self.start_s, 3)))
        await trio.sleep(self.duration_s)
        if self.error is not None:
            raise self.error

    async def after(self, *writes: tuple[float, str], until_s: float = 300) -> list[tuple[str, float]]:
        """The builds after `writes`, at times since the start."""
        self.start_s = trio.current_time()
        refresh = Refresh(self)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh.run)
            for at_s, dataset in writes:
                await trio.sleep_until(self.start_s + at_s)
                refresh.note(dataset)
            await trio.sleep_until(self.start_s + until_s)
            nursery.cancel_scope.cancel()
        return self.done


async def test_one_build_follows_the_last_chunk_of_a_put(autojump_clock: MockClock) -> None:
    writes = [(number * QUIET_S / 2, "a") for number in range(10)]
    assert await Builds().after(*writes) == [("a", 4.5 * QUIET_S + QUIET_S)]


async def test_a_long_put_is_built_at_intervals(autojump_clock: MockClock) -> None:
    writes = [(number * QUIET_S / 2, "a") for number in range(int(4 * STALE_S / QUIET_S) + 6)]
    builds = [at_s for _, at_s in await Builds().after(*writes)]
    assert builds[0] == STALE_S and builds[1] - STALE_S in (STALE_S, STALE_S + QUIET_S / 2)
    assert builds[2:] == [writes[-1][0] + QUIET_S]


async def test_datasets_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    assert await Builds().after((0, "a"), (QUIET_S / 2, "b")) == [("a", QUIET_S), ("b", 1.5 * QUIET_S)]


async def test_a_slow_build_is_followed_by_a_pause(autojump_clock: MockClock) -> None:
    slow_s = 5.0
    built = await Builds(slow_s).after((0, "a"), (QUIET_S + slow_s + 0.5, "a"))
    assert built == [("a", QUIET_S), ("a", QUIET_S + slow_s + PAUSE_FACTOR * slow_s)]


async def test_a_chunk_during_a_build_is_in_the_next_one(autojump_clock: MockClock) -> None:
    built = await Builds(1.0).after((0, "a"), (QUIET_S + 0.5, "a"))
    assert [name for name, _ in built] == ["a", "a"]


@pytest.mark.parametrize("error", [Unavailable("no metadata"), OSError("a bug")])
async def test_a_failed_build_is_tried_after_the_next_put(
    error: Exception, autojump_clock: MockClock
) -> None:
    failing = Builds(error=error)
    assert len(await failing.after((0, "a"), (100, "a"))) == 2
