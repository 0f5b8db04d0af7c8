"""Whether other programs use the machine, before a round. This module reads the load."""

import os
from collections.abc import Callable

from lab.namespace import wait_for

ROUND_LOAD_MAX = 1.5
"""More load than this before a round is other work. The run before it leaves some, which falls within seconds."""
QUIET_TIMEOUT_S = 600.0


class NotQuiet(Exception):
    """Other programs used the machine for too long."""


def current_load() -> float:
    """Of the last minute: the mean number of processes that run or wait for a processor."""
    return os.getloadavg()[0]


def quiet_load(read: Callable[[], float] = current_load, timeout_s: float = QUIET_TIMEOUT_S) -> float:
    """The load, as soon as it is ROUND_LOAD_MAX or less. Raises NotQuiet after the timeout."""
    try:
        wait_for(lambda: read() <= ROUND_LOAD_MAX, "a quiet machine", timeout_s)
    except AssertionError:
        raise NotQuiet(
            f"the load was above {ROUND_LOAD_MAX} for {timeout_s:g} s before a round: end other programs and run "
            "the same command again; with --keep it continues"
        ) from None
    return read()
