"""Steps of the event loop that take long: a task that does not wait keeps all others from their turns. This module
watches the event loop.

A step of a task goes from one checkpoint to the next. Those that are longer than LONG_STEP_S are counted by the name of
the task, which for a connection of a server is the call that it answers. The names come from the code, so they are few.
Time in which other threads or processes had the processor counts as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from dieselfs.telemetry.registry import Metric, Registry

if TYPE_CHECKING:
    from trio.lowlevel import Task

LONG_STEP_S = 0.001


class StepWatch(trio.abc.Instrument):
    """For one event loop. Costs less than a microsecond for each step."""

    def __init__(self, metrics: Registry, clock: Callable[[], float] = perf_counter) -> None:
        self.metrics, self._clock = metrics, clock
        self._began_s = inf  # the first step began before
        self._counts: dict[str, tuple[Metric, Metric]] = {}

    def before_task_step(self, task: "Task") -> None:
        self._began_s = self._clock()

    def after_task_step(self, task: "Task") -> None:
        took_s = self._clock() - self._began_s
        if took_s > LONG_STEP_S:
            self._count(task.name.rpartition(".")[2], took_s)

    def _count(self, name: str, took_s: float) -> None:
        if name not in self._counts:
            self._counts[name] = (
                self.metrics.counter("loop.long_steps", "Steps of tasks longer than 1 ms.", task=name),
                self.metrics.counter("loop.long_steps_s", "Time of these steps.", task=name),
            )
        steps, seconds = self._counts[name]
        steps.value += 1
        seconds.value += took_s


@contextmanager
def step_watch(metrics: Registry) -> Iterator[None]:
    """Watch the steps of this event loop until the end of the block."""
    watch = StepWatch(metrics)
    trio.lowlevel.add_instrument(watch)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(watch)
