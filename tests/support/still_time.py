"""Time for scenarios with real threads: it stands still, so that no pause of the machine is noticed, and flies where a
test says so.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf

import trio
import trio.testing


def run_in_still_time(main: Callable[[], Awaitable[None]]) -> None:
    """As `trio.run`. Nothing times out and nothing that sleeps wakes up, but where `time_flies`."""
    trio.run(main, clock=trio.testing.MockClock())


@contextmanager
def time_flies() -> Iterator[None]:
    """Whenever all tasks of this run wait, it is as late as the first of them waits for; threads are not waited for."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.autojump_threshold = 0
    try:
        yield
    finally:
        clock.autojump_threshold = inf
