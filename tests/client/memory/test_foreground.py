import trio
import trio.testing

from dieselfs_client.memory.foreground import Foreground


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
