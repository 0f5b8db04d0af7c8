"""Steps of tasks without a checkpoint are counted by the name of the task, if they are long."""

import pytest
import trio

from dieselfs.telemetry.event_loop import LONG_STEP_S, StepWatch, step_watch
from dieselfs.telemetry.registry import Registry


class _Clock:
    """Moves as the tasks say."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_long_steps_are_counted_by_the_name_of_their_task() -> None:
    clock, metrics = _Clock(), Registry()

    async def work(steps_s: list[float]) -> None:
        for step_s in steps_s:
            clock.now_s += step_s
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, [3 * LONG_STEP_S, LONG_STEP_S / 2, 2 * LONG_STEP_S], name="a.slow")
            nursery.start_soon(work, [LONG_STEP_S / 2] * 9, name="a.quick")

    trio.run(main, instruments=[StepWatch(metrics, clock)])
    steps, seconds = (metrics.as_dict()["loop"][name] for name in ("long_steps", "long_steps_s"))
    assert steps == {"slow": 2} and seconds["slow"] == pytest.approx(5 * LONG_STEP_S)


async def test_the_watch_ends_with_its_block() -> None:
    metrics = Registry()
    with step_watch(metrics):
        pass
    with pytest.raises(KeyError):
        trio.lowlevel.remove_instrument(StepWatch(metrics))
