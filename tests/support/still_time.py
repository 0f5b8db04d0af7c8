"""A simulated clock for tests with real threads: it advances only in blocks of `time_flies`, so pauses of the machine
have no effect.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf

import trio
import trio.testing


def run_in_still_time(main: Callable[[], Awaitable[None]]) -> None:
    """As `trio.run`. Timeouts and sleeps end only within `time_flies`."""
    trio.run(main, clock=trio.testing.MockClock())


@contextmanager
def time_flies() -> Iterator[None]:
    """Whenever all tasks of this run wait, the clock advances to the first deadline; it does not wait for threads."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.autojump_threshold = 0
    try:
        yield
    finally:
        clock.autojump_threshold = inf
