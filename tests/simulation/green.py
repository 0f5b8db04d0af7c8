"""Threads of the simulation: greenlets of one real thread. So the blocking code of servers and clients runs unchanged,
and the seed decides which thread runs.

A thread waits by `park`, for a time or until a `Signal` is notified. Tasks of trio may wait for signals, too.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, TypeVar

import trio
from greenlet import getcurrent, greenlet

from tests.simulation.clock import now_s, scheduler

T = TypeVar("T")


class Killed(BaseException):
    """The process of this thread has ended: nothing that it still does has any effect."""


class Abandoned(BaseException):
    """The task that waits for this thread is cancelled."""


@dataclass(eq=False)
class Process:
    """A simulated process: its threads, its clock, and whether it lives. Times in seconds."""

    name: str
    number: int
    skew_s: float = 0.0
    is_dead: bool = False
    parts: dict[str, Any] = field(default_factory=dict)
    """What a module of the product keeps for its process."""
    threads: int = 0
    """How many have been made."""
    jobs: dict["Job", None] = field(default_factory=dict)
    """What its threads do, in the order of their begin."""
    on_wait: Callable[[], None] = lambda: None
    """Called when one of its threads waits; may end the process."""

    def __post_init__(self) -> None:
        self.limiter = trio.CapacityLimiter(40)  # trio's own limit of threads

    def next_thread(self) -> int:
        self.threads += 1
        return self.threads

    def check(self) -> None:
        """Raise Killed once the process is dead."""
        if self.is_dead:
            raise Killed(self.name)

    async def reap(self) -> None:
        """A task that ends all threads of the process once it is cancelled."""
        try:
            await trio.sleep_forever()
        finally:
            while self.jobs:
                next(iter(self.jobs)).kill()


_process: ContextVar[Process] = ContextVar("process")


class Green(greenlet):
    """A green thread of a process. `is_cancelled`: whether the task that waits for it is cancelled. `turn`: the number
    of its present wait; what would end an earlier one has no effect.
    """

    process: Process
    is_cancelled: Callable[[], bool]
    turn = 0

    def wake(self, turn: int, is_notified: bool) -> None:
        """End the wait of this number."""
        if self.turn == turn:
            self.turn += 1
            scheduler().ready(self, is_notified)


def current_green() -> Green | None:
    found = getcurrent()
    return found if isinstance(found, Green) else None


def current_process() -> Process | None:
    """The simulated process that runs now; None outside of the simulation."""
    found = getcurrent()
    return found.process if isinstance(found, Green) else _process.get(None)


def enter(process: Process) -> None:
    """The calling task, and those that it starts, are of this process."""
    _process.set(process)


class Signal:
    """Tells threads and tasks that something may have changed."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def notify(self) -> None:
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()

    async def wait(self) -> None:
        """In a task."""
        task = trio.lowlevel.current_task()

        def wake() -> None:
            trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            self.waiting.remove(wake)
            return trio.lowlevel.Abort.SUCCEEDED

        self.waiting.append(wake)
        await trio.lowlevel.wait_task_rescheduled(abort)


def park(signals: Sequence[Signal] = (), until_s: float = inf) -> bool:
    """In a thread: wait until one of the signals is notified, or until a time, then False. Raises Killed."""
    green = getcurrent()
    if not isinstance(green, Green):
        raise RuntimeError("the event loop would wait for a thread: its lock is held across I/O")
    green.process.check()
    green.process.on_wait()
    green.process.check()
    turn = green.turn
    wake = partial(green.wake, turn, True)
    for signal in signals:
        signal.waiting.append(wake)
    if until_s < inf:
        scheduler().call_at(until_s, partial(green.wake, turn, False))
    assert green.parent is not None
    try:
        is_notified: bool = green.parent.switch()
    finally:
        green.turn = turn + 1
        for signal in signals:
            if wake in signal.waiting:
                signal.waiting.remove(wake)
    green.process.check()
    return is_notified


def pause(seconds: float) -> None:
    """As `time.sleep`, on the virtual clock."""
    park((), now_s() + max(seconds, 0.0))


class Job:
    """A function in a thread, and its end."""

    def __init__(
        self, process: Process, function: Callable[[], Any], is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Start it. The thread runs when it is its turn."""
        self.is_done = False
        self.ended = Signal()
        self.result: Any = None
        self.error: BaseException | None = None
        self._process, self._function = process, function
        self._green = Green(self._run, parent=scheduler().hub)
        self._green.process, self._green.is_cancelled = process, is_cancelled
        process.jobs[self] = None
        scheduler().ready(self._green, True)

    def _run(self, _: bool) -> None:
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error
        finally:
            self._end()

    def _end(self) -> None:
        self._process.jobs.pop(self, None)
        self.is_done = True
        self.ended.notify()

    def kill(self) -> None:
        """The thread gets Killed where it waits. What it does at its end waits for nothing."""
        error = Killed(self._process.name)
        with suppress(Killed):
            while not self._green.dead:
                self._green.throw(error)
        if not self.is_done:  # it has not begun
            self.error = error
            self._end()

    def value(self) -> Any:
        """What the function has returned; raises what it has raised."""
        if self.error is not None:
            raise self.error
        return self.result


async def drive(process: Process, function: Callable[[], T]) -> T:
    """Run a function in a green thread. If this is cancelled, the thread is killed."""
    job = Job(process, function)
    try:
        while not job.is_done:
            await job.ended.wait()
    except trio.Cancelled:
        job.kill()
        raise
    result: T = job.value()
    return result


async def run_sync(
    function: Callable[..., T],
    *args: Any,
    thread_name: str | None = None,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """As `trio.to_thread.run_sync`, in a green thread of the present process."""
    await trio.lowlevel.checkpoint_if_cancelled()
    process = current_process()
    assert process is not None
    status = trio.lowlevel.current_task()._cancel_status
    tokens, place = limiter or process.limiter, object()
    try:
        tokens.acquire_on_behalf_of_nowait(place)
    except trio.WouldBlock:
        await tokens.acquire_on_behalf_of(place)

    def work() -> T:
        try:
            return function(*args)
        finally:
            tokens.release_on_behalf_of(place)

    job = Job(process, work, lambda: status.effectively_cancelled)
    await _ended(job, abandon_on_cancel)
    if isinstance(job.error, Abandoned):
        await trio.lowlevel.checkpoint_if_cancelled()
    result: T = job.value()
    return result


async def _ended(job: Job, is_cancellable: bool) -> None:
    task = trio.lowlevel.current_task()

    def wake() -> None:
        trio.lowlevel.reschedule(task)

    def abort(_: object) -> trio.lowlevel.Abort:
        if not is_cancellable:
            return trio.lowlevel.Abort.FAILED
        job.ended.waiting.remove(wake)
        return trio.lowlevel.Abort.SUCCEEDED

    job.ended.waiting.append(wake)
    await trio.lowlevel.wait_task_rescheduled(abort)


def check_cancelled() -> None:
    """As `trio.from_thread.check_cancelled`."""
    green = current_green()
    if green is not None and green.is_cancelled():
        raise Abandoned


class Thread:
    """As `threading.Thread`, of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name, self.daemon = name or "thread", bool(daemon)
        self._job: Job | None = None
        process = current_process()
        self._number = 0 if process is None else process.next_thread()

    def __hash__(self) -> int:
        """Not of its address: an executor joins a set of threads, which has the same order in each run."""
        return self._number

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        process = current_process()
        assert process is not None, "a thread outside of the simulation"
        process.check()
        self._job = Job(process, self.run)

    def is_alive(self) -> bool:
        return self._job is not None and not self._job.is_done

    def join(self, timeout: float | None = None) -> None:
        job = self._job
        if job is None or current_green() is None:
            return
        until_s = inf if timeout is None else now_s() + timeout
        while not job.is_done and park((job.ended,), until_s):
            pass


class Lock:
    """As `threading.Lock`. The event loop may take it only while nobody holds it."""

    def __init__(self) -> None:
        self._is_locked = False
        self._freed = Signal()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking:
            return False
        until_s = now_s() + timeout if timeout >= 0 else inf
        while self._is_locked:
            if not park((self._freed,), until_s):
                return False
        self._is_locked = True
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._freed.waiting:
            self._freed.notify()

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]  # it is as a new one


class RLock:
    """As `threading.RLock`."""

    def __init__(self) -> None:
        self._lock, self._owner, self._count = Lock(), None, 0  # type: tuple[Lock, Any, int]

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is getcurrent():
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = getcurrent(), 1
        return True

    def release(self) -> None:
        if self._owner is not getcurrent():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner is getcurrent()

    def _release_save(self) -> tuple[int, Any]:
        state = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, Any]) -> None:
        self._lock.acquire()
        self._count, self._owner = state

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]  # it is as a new one
