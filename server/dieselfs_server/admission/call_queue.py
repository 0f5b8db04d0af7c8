"""Calls wait here for the turn of their user. This module waits; `fair_queue.py` decides."""

import time
from collections.abc import Callable
from math import inf

import trio

from dieselfs.errors import Unavailable
from dieselfs.limits import (
    BUILDS_MAX,
    BUILDS_OF_USER_MAX,
    CALL_COST_MAX_US,
    CALL_COST_OF_USER_MAX_US,
    CALL_DEBT_MAX_US,
    SMALL_CALL_COST_US,
    TURN_WAIT_S,
)
from dieselfs.rpc.methods import BUILD, METHODS, RENEWAL
from dieselfs.rpc.serving.slots import part_of
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.admission.fair_queue import FairQueue, Turn
from dieselfs_server.admission.processor_time import SPENDING, Spending
from dieselfs_server.admission.throttle import RENEWAL_WAIT_S_MAX


class CallQueue:
    """For one event loop."""

    def __init__(
        self, metrics: Registry, thread_clock: Callable[[], float] | None = None, share: int = 1
    ) -> None:
        """`thread_clock`: processor time of the present thread in seconds; `time.thread_time`. `share`: processes of
        the server, which have equal parts of the builds. Each has an interpreter of its own, so the limits of costs are
        those of one process.
        """
        self.metrics, self.thread_clock = metrics, thread_clock or time.thread_time
        # Changed only between checkpoints.
        limits = CALL_COST_MAX_US, CALL_COST_OF_USER_MAX_US, SMALL_CALL_COST_US, CALL_DEBT_MAX_US
        self._queue = FairQueue(*limits)
        builds = part_of(BUILDS_MAX, share), part_of(BUILDS_OF_USER_MAX, share)
        self._builds = FairQueue(*builds, 0)  # by their number
        metrics.gauge("calls.waiting", "Calls that wait for the turn of their user.", self._waiting)
        metrics.gauge(
            "calls.cost_in_flight_s",
            "What the calls in flight cost, by the model of costs.",
            lambda: self._queue.in_flight / 1e6,
        )
        self._waits = metrics.counter("calls.waits", "Calls that have waited for the turn of their user.")
        self._waited_s = metrics.counter(
            "calls.waited_s", "Time that calls waited for the turn of their user."
        )

    def _waiting(self) -> int:
        return self._queue.waiting + self._builds.waiting

    def turn(self, user: str, method: str, cost_us: int) -> "CallTurn":
        """A block that begins when the call may begin; it is in flight until the end of the block. Without a wait,
        there is no checkpoint. Processor time of its threads beyond `cost_us` is charged to the user. Raises
        Unavailable after TURN_WAIT_S. The renewal of a lease begins anyway, after RENEWAL_WAIT_S_MAX. What may take
        minutes waits for its turn, as long as it takes: calls that may build a snapshot in a queue of their own; a job
        has its own limits, so it then holds nothing.
        """
        if METHODS[method].work == BUILD:
            return CallTurn(self, self._builds, user, method, 1)
        return CallTurn(self, self._queue, user, method, cost_us)

    async def wait(self, turn: Turn, patience_s: float) -> None:
        """Until the turn has begun, or for so long."""
        may_begin = trio.Event()
        turn.begin = may_begin.set
        self._waits.value += 1
        started_s = trio.current_time()
        try:
            with trio.move_on_after(patience_s):
                await may_begin.wait()
        finally:
            self._waited_s.value += trio.current_time() - started_s


class CallTurn:
    """The block of `CallQueue.turn`. A class, because each call has one: a generator would take twice as long."""

    __slots__ = ("_calls", "_cost", "_method", "_queue", "_spending", "_turn", "_user")

    def __init__(self, calls: CallQueue, queue: FairQueue, user: str, method: str, cost: int) -> None:
        self._calls, self._queue, self._user, self._method, self._cost = calls, queue, user, method, cost
        self._turn: Turn | None = None
        self._spending = Spending(calls.thread_clock)

    async def __aenter__(self) -> None:
        self._turn = turn = self._queue.enter(self._user, self._cost, _begun)
        row = METHODS[self._method]
        if not turn.has_begun:
            is_renewal = row.urgency == RENEWAL
            patience_s = RENEWAL_WAIT_S_MAX if is_renewal else inf if row.work.limit_s else TURN_WAIT_S
            try:
                await self._calls.wait(turn, patience_s)
                if not turn.has_begun and not is_renewal:
                    raise Unavailable(
                        f"the calls of user {self._user} that are in progress are all that this server "
                        "does for one user at a time; try again later"
                    )
            except BaseException:
                self._leave()
                raise
        if row.work.limit_s and row.work != BUILD:
            self._leave()
        elif row.work != BUILD:  # which holds a place, not a cost
            SPENDING.set(self._spending)

    async def __aexit__(self, *_: object) -> None:
        beyond_us = int(self._spending.processor_s * 1e6) - self._cost
        if beyond_us > 0:
            self._calls.metrics.declare(catalogue.CALLS_BEYOND_COST_S, method=self._method).value += (
                beyond_us / 1e6
            )
            self._queue.charge(self._user, beyond_us)
        self._leave()

    def _leave(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._queue.leave(turn)


def _begun() -> None:
    """Nobody waits yet when a turn begins at once."""
