"""Work with a companion: the first error of the two is raised, and neither outlives the other."""

import pytest
import trio
import trio.testing

from dieselfs.process.companion import accompanied


async def test_the_companion_ends_with_the_work() -> None:
    ended = trio.Event()

    async def companion() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert await accompanied(work, companion) == 7
    assert ended.is_set()


async def test_an_error_of_the_companion_cancels_the_work() -> None:
    cancelled = trio.Event()

    async def companion() -> None:
        raise OSError("gone")

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    with pytest.raises(OSError, match="gone"):
        await accompanied(work, companion)
    assert cancelled.is_set()


async def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await accompanied(work, trio.sleep_forever)


async def test_work_outlives_a_companion_that_returns() -> None:
    async def work() -> int:
        await trio.testing.wait_all_tasks_blocked()
        return 1

    assert await accompanied(work, trio.lowlevel.checkpoint) == 1


async def test_a_cancellation_from_outside_ends_both() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await accompanied(trio.sleep_forever, trio.sleep_forever)
    assert scope.cancelled_caught
