"""Virtual time: a clock that jumps to the next event, and the turns of green threads between two events of trio.

Each run has one `Scheduler`. While no task of trio may run, it runs threads and moves the clock, which costs a tenth of
a turn of trio's loop; beside other tasks it is one of them. The seed decides the order of what may run at one time.
"""

import random
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

import trio
import trio.testing
from greenlet import getcurrent, greenlet
from trio._core._run import GLOBAL_RUN_CONTEXT


class Scheduler:
    """The green threads and timers of one run. Threads are given by their greenlet; a thread runs until it switches to
    its parent.
    """

    def __init__(self, seed: object) -> None:
        self.now_s = 0.0
        """Virtual seconds since the begin of the run."""
        self.hub: greenlet | None = None
        """The parent of all threads."""
        self._order = random.Random(f"{seed} order")
        self._ready: list[tuple[greenlet, bool]] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._is_jumping = False
        self._parked: Any = None

    def clock(self) -> trio.testing.MockClock:
        """The clock of trio, whose class cannot have a subclass, without real time."""
        clock: Any = trio.testing.MockClock(autojump_threshold=0)
        clock.current_time = lambda: self.now_s
        clock.deadline_to_sleep_time = lambda deadline: 0 if deadline <= self.now_s else inf
        clock._autojump = self._jump
        virtual: trio.testing.MockClock = clock
        return virtual

    def _jump(self) -> None:
        """Go from event to event until a task may run. Called by trio when none may."""
        runner = GLOBAL_RUN_CONTEXT.runner
        self._is_jumping = True
        while not runner.runq:
            deadline_s = runner.deadlines.next_deadline()
            if not self._timers or self._timers[0][0] > deadline_s:
                if deadline_s < inf:
                    self.now_s = max(self.now_s, deadline_s)
                break
            self._fire()
            while self._ready and not runner.runq:
                self._run_ready()
        self._is_jumping = False
        if self._ready:
            self.poke()

    def _fire(self) -> None:
        """Call what is due next."""
        timers = self._timers
        self.now_s = now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= now_s:
            heappop(timers)[2]()

    def _run_ready(self) -> None:
        batch, self._ready = self._ready, []
        if len(batch) > 1:
            self._order.shuffle(batch)
        for thread, value in batch:
            if not thread.dead:
                thread.switch(value)

    def call_at(self, due_s: float, function: Callable[[], object]) -> None:
        """Call a function, which does not wait, at a time."""
        self._count += 1
        heappush(self._timers, (due_s, self._count, function))

    def ready(self, thread: greenlet, value: bool) -> None:
        """Let a thread run soon: it is switched to with this value."""
        self._ready.append((thread, value))
        if not self._is_jumping:
            self.poke()

    def poke(self) -> None:
        """Wake the task of the scheduler."""
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def run(self) -> None:
        """Until cancelled."""
        self.hub = getcurrent()
        while True:
            while self._ready:
                self._run_ready()
                await trio.lowlevel.checkpoint()
            await self._park()

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


_schedulers: list[Scheduler] = []


def scheduler() -> Scheduler:
    """That of the present run."""
    return _schedulers[-1]


def now_s() -> float:
    """As `Scheduler.now_s`, of the present run."""
    return _schedulers[-1].now_s


def run(main: Callable[[], Any], seed: object) -> Any:
    """As `trio.run`, in virtual time."""
    present = Scheduler(seed)

    async def scheduled() -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(present.run)
            await trio.lowlevel.checkpoint()
            result = await main()
            nursery.cancel_scope.cancel()
        return result

    _schedulers[:] = [present]
    return trio.run(scheduled, clock=present.clock())
