"""Calls wait here for the turn of their user. This module waits; `fair_queue.py` decides."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import trio

from dieselfs.errors import Unavailable
from dieselfs.limits import (
    BUILDS_MAX,
    BUILDS_OF_USER_MAX,
    CALL_COST_MAX_US,
    CALL_COST_OF_USER_MAX_US,
    SMALL_CALL_COST_US,
    TURN_WAIT_S,
)
from dieselfs.rpc.methods import BUILD, METHODS, RENEWAL
from dieselfs.telemetry.registry import Registry
from dieselfs_server.admission.fair_queue import FairQueue
from dieselfs_server.admission.throttle import RENEWAL_WAIT_S_MAX


class CallQueue:
    """For one event loop."""

    def __init__(self, metrics: Registry) -> None:
        # Changed only between checkpoints.
        self._queue = FairQueue(CALL_COST_MAX_US, CALL_COST_OF_USER_MAX_US, SMALL_CALL_COST_US)
        self._builds = FairQueue(BUILDS_MAX, BUILDS_OF_USER_MAX, 0)  # by their number
        metrics.gauge("calls.waiting", "Calls that wait for the turn of their user.", self._waiting)
        metrics.gauge(
            "calls.cost_in_flight_us",
            "What the calls in flight cost, in microseconds by the model of costs.",
            lambda: self._queue.in_flight,
        )
        self._waits = metrics.counter("calls.waits", "Calls that have waited for the turn of their user.")
        self._waited_s = metrics.counter(
            "calls.waited_s", "Time that calls waited for the turn of their user."
        )

    def _waiting(self) -> int:
        return self._queue.waiting + self._builds.waiting

    @asynccontextmanager
    async def turn(self, user: str, method: str, cost_us: int) -> AsyncIterator[None]:
        """Wait until the call may begin; it is in flight until the end of the block. Without a wait, there is no
        checkpoint. Raises Unavailable after TURN_WAIT_S. The renewal of a lease begins anyway, after
        RENEWAL_WAIT_S_MAX. What may take minutes waits for its turn, as long as it takes: calls that may build a
        snapshot in a queue of their own; a job has its own limits, so it then holds nothing.
        """
        row, may_begin = METHODS[method], trio.Event()
        is_build, is_job = row.work == BUILD, row.work.limit_s > 0 and row.work != BUILD
        queue = self._builds if is_build else self._queue
        turn = queue.enter(user, 1 if is_build else cost_us, may_begin.set)
        is_held = True
        try:
            if not turn.has_begun:
                is_renewal = row.urgency == RENEWAL
                patience_s = RENEWAL_WAIT_S_MAX if is_renewal else inf if row.work.limit_s else TURN_WAIT_S
                await self._wait(may_begin, patience_s)
                if not turn.has_begun and not is_renewal:
                    raise Unavailable(
                        f"the calls of user {user} that are in progress are all that this server "
                        "does for one user at a time; try again later"
                    )
            if is_job:
                queue.leave(turn)
                is_held = False
            yield
        finally:
            if is_held:
                queue.leave(turn)

    async def _wait(self, may_begin: trio.Event, patience_s: float) -> None:
        self._waits.value += 1
        started_s = trio.current_time()
        try:
            with trio.move_on_after(patience_s):
                await may_begin.wait()
        finally:
            self._waited_s.value += trio.current_time() - started_s
