"""Counters of forks add up, and none of those that end or are killed is lost."""

import os
import signal

from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.shared import SharedRegistry


class Counted:
    """What a component counts."""

    def __init__(self, metrics: Registry) -> None:
        self.metrics = metrics
        self.done = metrics.counter("disk.done", "Shared.")
        self.size = metrics.gauge("disk.size", "Shared.")

    def count(self, more: int) -> None:
        self.metrics.add(self.done, more)
        self.size.value = more


def fork(counted: Counted, row: int, more: int) -> None:
    child = os.fork()
    if not child:
        assert isinstance(counted.metrics, SharedRegistry)
        counted.metrics.row = row
        counted.count(more)
        counted.metrics.counter("own.done", "Of one process.").value += more
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_registry_shows_what_all_forks_have_counted() -> None:
    metrics = SharedRegistry(processes=3)
    counted = Counted(metrics)
    metrics.seal()
    own = metrics.counter("own.done", "Of one process.")
    counted.count(1)
    own.value += 1
    for row, more in [(1, 10), (2, 100), (1, 1000)]:  # the last takes the place of the first
        fork(counted, row, more)
    assert metrics.numbers() == {"disk.done": 1111, "disk.size": 1000, "own.done": 1}
    assert Counted(metrics).done is counted.done, "declared again"
