"""Training programs of a simulated job: processes that read with the library, and what they are to do."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from dieselfs.cluster.access import JobAccess
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.settings.table import Settings
from dieselfs.shuffle.plan import ShuffledPaths
from tests.simulation.actors import CALL_S_MAX
from tests.simulation.clock import now_s
from tests.simulation.green import Process, Signal, drive, park
from tests.simulation.job_oracle import READ_S_MAX, JobOracle
from tests.simulation.job_plan import Read
from tests.simulation.machines import Life, Machine

DATASET = "train"
RESTART_S = 2.0
IDLE_S_MAX = 90.0
"""Without programs, a daemon ends after this time."""


class Todo:
    """What a program is to do, one after the other."""

    def __init__(self) -> None:
        self._work: deque[tuple[Callable[[], None], trio.Event]] = deque()
        self._is_closed = False
        self._changed = Signal()

    def add(self, do: Callable[[], None], done: trio.Event) -> None:
        self._work.append((do, done))
        self._changed.notify()

    def close(self) -> None:
        self._is_closed = True
        self._changed.notify()

    def take(self) -> tuple[Callable[[], None], trio.Event] | None:
        """In the program: the next; None at the end."""
        while not self._work and not self._is_closed:
            park((self._changed,))
        return self._work.popleft() if self._work else None


class Program:
    """A training program: a process that reads with the library. Its launcher starts it again when it dies."""

    def __init__(
        self, name: str, machine: Machine, settings: Settings, memory_bytes: int, oracle: JobOracle
    ) -> None:
        self.name, self._machine, self._settings = name, machine, settings
        self._memory_bytes, self._oracle = memory_bytes, oracle
        self._life: Life | None = None
        self._dataset: Dataset | None = None
        self._todo = Todo()

    @property
    def members(self) -> tuple[Any, ...]:
        """The members that it knows."""
        reader = None if self._dataset is None else self._dataset._frozen.reader
        attached = None if reader is None else reader._held._job
        return () if attached is None else attached.members

    # -- in tasks of the run -----------------------------------------------------------------------------------

    async def start(self, after_s: float) -> None:
        """Start it, unless it runs."""
        if self._life is None or self._life.ended.is_set():
            await trio.sleep(after_s)
            self._dataset = None
            self._todo = todo = Todo()
            self._life = self._machine.start(lambda process: self._run(process, todo))

    async def _run(self, process: Process, todo: Todo) -> None:
        process.parts["program"] = self
        await drive(process, lambda: self._work(todo))

    def _work(self, todo: Todo) -> None:
        while (work := todo.take()) is not None:
            do, done = work
            do()
            done.set()
        if self._dataset is not None:
            self._dataset.close()

    async def _do(self, work: Callable[[], None]) -> None:
        """Do something in the process; return when it is done, or the process has died."""
        assert self._life is not None
        done = trio.Event()
        async with trio.open_nursery() as nursery:

            async def watch(ended: trio.Event) -> None:
                await ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch, self._life.ended)
            self._todo.add(work, done)
            await done.wait()
            nursery.cancel_scope.cancel()

    async def read(self, read: Read) -> None:
        await trio.sleep(read.pause_s)
        await self.start(RESTART_S)
        await self._do(partial(self._read, read))

    async def read_all(self, what: str, is_cold: bool = True, paths: int | None = None) -> None:
        """All files, or this number of them; `is_cold`: the memory of the reader is empty."""
        await self._do(partial(self._read_all, what, is_cold, paths))

    async def stop(self) -> None:
        self._todo.close()
        assert self._life is not None
        with trio.move_on_after(IDLE_S_MAX):
            await self._life.ended.wait()

    # -- in its process ----------------------------------------------------------------------------------------

    def _opened(self) -> Dataset:
        if self._dataset is None:
            found = JobAccess.find(self._settings, DATASET, is_required=True, environment={})
            self._dataset = Dataset(self._settings, DATASET, memory_bytes=self._memory_bytes, job=found)
        return self._dataset

    def _bounded(self, what: str, do: Callable[[], object], reads: int = 1) -> None:
        """Do what must end in time. Errors of the product are answers, if servers may fail."""
        oracle, began_s = self._oracle, trio.current_time()
        limit_s = READ_S_MAX + (reads * CALL_S_MAX if oracle.failures_excused else 0.0)
        try:
            do()
        except DieselfsError as error:
            oracle.failed(what, error)
        except Exception as error:
            self._oracle.world.violated(f"{what} raised {error!r}")
            raise
        oracle.took(what, now_s() - began_s, limit_s)

    def _read_all(self, what: str, is_cold: bool, paths: int | None) -> None:
        what = f"{what}: {self.name}"
        if is_cold:
            self._bounded(what, lambda: self._opened().refresh())
        for path in [*self._oracle.contents][:paths]:
            self._bounded(what, partial(self._get, what, path))

    def _get(self, what: str, path: str) -> None:
        self._oracle.check_read(what, path, self._opened().get(path))

    def _read(self, read: Read) -> None:
        what = f"step {read.number}"
        self._oracle.world.note(f"{what}: {read.kind}")
        READS[read.kind](self, what, random.Random(read.choice))

    def _read_some(self, what: str, source: random.Random) -> None:
        for path in source.sample(paths := [*self._oracle.contents], min(8, len(paths))):
            self._bounded(what, partial(self._get, what, path))

    def _read_many(self, what: str, source: random.Random) -> None:
        paths = source.sample(every := [*self._oracle.contents], min(12, len(every)))

        def get() -> None:
            for path, content in zip(paths, self._opened().get_many(paths), strict=True):
                self._oracle.check_read(what, path, content)

        self._bounded(what, get, len(paths))

    def _read_range(self, what: str, source: random.Random) -> None:
        path, content = source.choice([*self._oracle.contents.items()])
        begin, end = sorted(source.randint(0, len(content)) for _ in range(2))

        def get() -> None:
            found = self._opened().get_range(path, begin, end)
            self._oracle.check_read(what, path, found, begin, end)

        self._bounded(what, get)

    def _read_plan(self, what: str, source: random.Random, is_ahead: bool = False) -> None:
        """An epoch that all programs share, each its part."""
        programs = self._oracle.programs
        rank, world = programs.index(self.name), len(programs)
        shares: list[ShuffledPaths] = []

        def share() -> None:
            plan = self._opened().plan(epoch=source.randrange(4), group_chunks=4)
            shares.append(plan.share(rank, world).paths)

        self._bounded(what, share)
        paths: Sequence[str] = shares[0] if shares else ()
        if is_ahead and shares:
            for path in self._opened().ahead(shares[0]):
                self._bounded(what, partial(self._get, what, path))
            return
        for first in range(0, len(paths), 5):
            some = paths[first : first + 5]

            def get(some: Sequence[str] = some) -> None:
                for path, content in zip(some, self._opened().get_many(some), strict=True):
                    self._oracle.check_read(what, path, content)

            self._bounded(what, get, len(some))

    def _refresh(self, what: str, source: random.Random) -> None:
        self._bounded(what, lambda: self._opened().refresh())


READS: dict[str, Callable[[Program, str, random.Random], None]] = {
    "get": Program._read_some,
    "many": Program._read_many,
    "range": Program._read_range,
    "plan": Program._read_plan,
    "ahead": partial(Program._read_plan, is_ahead=True),
    "refresh": Program._refresh,
}
