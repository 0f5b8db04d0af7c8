"""Threads of the simulation: greenlets of one real thread, which trio schedules. So the blocking code of servers and
clients runs unchanged, and the seed decides which thread runs.

A green thread waits by `wait_for`: it hands an async function to its driver, a task of trio, which awaits it.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio
from greenlet import getcurrent, greenlet

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
    threads: trio.Nursery
    skew_s: float = 0.0
    is_dead: bool = False
    parts: dict[str, Any] = field(default_factory=dict)
    """What a module of the product keeps for its process."""

    def __post_init__(self) -> None:
        self.limiter = trio.CapacityLimiter(40)  # trio's own limit of threads

    def check(self) -> None:
        """Raise Killed once the process is dead."""
        if self.is_dead:
            raise Killed(self.name)


_process: ContextVar[Process] = ContextVar("process")


class Green(greenlet):
    """A green thread of a process. `is_cancelled`: whether the task that waits for it is cancelled."""

    process: Process
    is_cancelled: Callable[[], bool]


def current_green() -> Green | None:
    found = getcurrent()
    return found if isinstance(found, Green) else None


def current_process() -> Process | None:
    """The simulated process that runs now; None outside of the simulation."""
    green = current_green()
    return green.process if green is not None else _process.get(None)


def enter(process: Process) -> None:
    """The calling task, and those that it starts, are of this process."""
    _process.set(process)


def wait_for(work: Callable[[], Awaitable[T]]) -> T:
    """What `work` returns or raises; meanwhile others run. For green threads. Raises Killed."""
    green = current_green()
    if green is None:
        raise RuntimeError("the event loop would wait for a thread: its lock is held across I/O")
    green.process.check()
    assert green.parent is not None
    result: T = green.parent.switch(work)
    green.process.check()
    return result


def pause(seconds: float) -> None:
    """As `time.sleep`, on the virtual clock."""

    async def slept() -> None:
        await trio.sleep(max(seconds, 0.0))

    wait_for(slept)


async def drive(
    process: Process, function: Callable[[], T], is_cancelled: Callable[[], bool] = lambda: False
) -> T:
    """Run a function in a green thread. If this is cancelled, the thread gets Killed where it waits."""
    green = Green(function)
    green.process, green.is_cancelled = process, is_cancelled
    wanted: Any = green.switch()
    while not green.dead:
        try:
            result = await wanted()
        except trio.Cancelled:
            with suppress(Killed):
                while not green.dead:  # what it does at its end waits for nothing
                    green.throw(Killed(process.name))
            raise
        except BaseException as error:
            wanted = green.throw(error)
        else:
            wanted = green.switch(result)
    finished: T = wanted
    return finished


@dataclass(eq=False)
class _Job:
    """A function in a thread, and its end."""

    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    error: BaseException | None = None

    async def run(
        self, process: Process, function: Callable[[], Any], is_cancelled: Callable[[], bool]
    ) -> None:
        enter(process)
        try:
            self.result = await drive(process, function, is_cancelled)
        except Killed as error:
            self.error = error
        except trio.Cancelled:
            self.error = Killed(process.name)
            raise
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


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
    task = trio.lowlevel.current_task()
    status = task._cancel_status
    job = _Job()
    tokens = limiter or process.limiter
    await tokens.acquire_on_behalf_of(job)

    def work() -> T:
        try:
            return function(*args)
        finally:
            tokens.release_on_behalf_of(job)

    process.threads.start_soon(job.run, process, work, lambda: status.effectively_cancelled)
    with trio.CancelScope(shield=not abandon_on_cancel):
        await job.done.wait()
    if isinstance(job.error, Abandoned):
        await trio.lowlevel.checkpoint_if_cancelled()
    if job.error is not None:
        raise job.error
    result: T = job.result
    return result


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
        self._job: _Job | None = None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        process = current_process()
        assert process is not None, "a thread outside of the simulation"
        process.check()
        self._job = _Job()
        process.threads.start_soon(self._job.run, process, self.run, lambda: False)

    def is_alive(self) -> bool:
        return self._job is not None and not self._job.done.is_set()

    def join(self, timeout: float | None = None) -> None:
        job = self._job
        if job is None or job.done.is_set() or current_green() is None:
            return

        async def ended() -> None:
            with trio.move_on_after(float("inf") if timeout is None else timeout):
                await job.done.wait()

        wait_for(ended)


class Lock:
    """As `threading.Lock`. The event loop may take it only while nobody holds it."""

    def __init__(self) -> None:
        self._is_locked = False
        self._waiting: list[trio.Event] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking:
            return False

        async def taken() -> bool:
            with trio.move_on_after(timeout if timeout >= 0 else float("inf")):
                while self._is_locked:
                    freed = trio.Event()
                    self._waiting.append(freed)
                    try:
                        await freed.wait()
                    finally:
                        if freed in self._waiting:
                            self._waiting.remove(freed)
                self._is_locked = True
                return True
            return False

        return wait_for(taken)

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._waiting:
            self._waiting.pop(0).set()

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
