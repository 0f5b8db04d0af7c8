"""Processes that share the work of one command, a unit at a time. This module forks.

A worker is a fork of the command, and has all that it had. The messages (`messages.py`) go through a pair of sockets.

    next, RESULT     the unit is done; wants another one
    part, RESULT     before that: something is done
    alive            there was progress lately, or a server works for the worker
    done, RESULT     all that it was given is done
    error, KIND, TEXT    the work has failed

    unit, UNIT; end      to a worker that waits
"""

import gc
import os
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any, NoReturn

import dieselfs.errors
from dieselfs.errors import EXIT_BUG, EXIT_OK, DieselfsError, Unavailable
from dieselfs.names import printable
from dieselfs.process import sandbox
from dieselfs.process.launch import ProcessHandle
from dieselfs.transfer.spreading import Spread, Transfer, in_threads
from dieselfs_tools.transfers.messages import Reader, Writer

END_TIMEOUT_S = 3.0
"""Until a worker that is told to stop has ended its request; then it is killed."""
STALLED_S = 600.0
"""A worker that says nothing for this long is stopped, or waits in one call for a file system that does not answer. To
list a folder of millions of names there may take minutes."""
LOOKS = 4
"""Signs of life of a worker in this time."""

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Unit = Sequence[Any]
"""What msgpack can send. It fits into the buffer of a socket, so giving it to a worker never waits."""

Pulse = Callable[[], tuple[int, bool]]
"""A number that changes with each step of the work, and whether a server is called: the client bounds such waits."""


class Link:
    """A worker's end. `result`: of the last unit, for the command."""

    def __init__(self, end: socket.socket, stalled_s: float) -> None:
        self.result: Any = None
        self._stalled_s = stalled_s
        self._orders, self._messages = Reader(end.fileno()), Writer(end.fileno())
        self._lock = Lock()  # guards `_messages`

    def units(self) -> Iterator[Unit]:
        """The units that this worker is given. Raises Unavailable if the command wants no more."""
        while True:
            order = None
            with suppress(ConnectionResetError):
                order = self._orders.receive(lambda: None)
            match order:
                case ["unit", list() as unit], _:
                    yield unit
                case ["end"], _:
                    return
                case _:
                    raise Unavailable("the command has ended")
            self.tell("next", self.result)

    def tell(self, *message: Any) -> None:
        with self._lock, suppress(BrokenPipeError, ConnectionResetError):  # the command ends it
            self._messages.put(*message)
            self._messages.flush()

    def follow(self, pulse: Pulse) -> None:
        """From now on, tell that the work makes progress while it does."""
        Thread(target=self.beat, args=(pulse,), name="dieselfs-beat", daemon=True).start()

    def beat(self, pulse: Pulse) -> None:
        """The loop of a thread, until the process ends."""
        seen = -1
        while True:
            time.sleep(self._stalled_s / LOOKS / 2)
            steps, is_calling = pulse()
            if steps != seen or is_calling:
                self.tell("alive")
            seen = steps


class Workers:
    """The processes of one command, by `run`."""

    def __init__(
        self,
        what: str,
        jobs: int,
        take: Callable[[], Unit | None],
        work: Callable[[Link], Any],
        finish: Callable[[Any], object],
        place: Callable[[Unit], bytes],
        stalled_s: float = STALLED_S,
    ) -> None:
        """`what`: names the command in messages; `jobs`: processes at most. `take` returns a unit, None if there is
        none now. `work` runs in each worker; what it returns, and all its other results but None, go to `finish`, which
        may make units. `place`: of a unit, in messages; `stalled_s`: a worker with a unit that says nothing for this
        long ends the command.
        """
        self._what = what
        self._jobs = jobs
        self._take = take
        self._work = work
        self._finish = finish
        self._place = place
        self._stalled_s = stalled_s
        self._workers: list[Worker] = []

    def run(self) -> None:
        """Do all units; then no worker is left. Raises the errors of workers, those of `take` and `finish`, and
        Unavailable if a worker is killed, or makes no progress.
        """
        try:
            self._give_all()
            for worker in self._workers:
                worker.end()
            while not all(worker.is_done for worker in self._workers):
                self.receive()
        finally:
            for worker in self._workers:
                worker.close()
            self._workers = []

    def _give_all(self) -> None:
        while True:
            for worker in [worker for worker in self._workers if worker.is_waiting]:
                if (unit := self._take()) is not None:
                    worker.give(unit)
            while len(self._workers) < self._jobs and (unit := self._take()) is not None:
                self.add(self._forked()).give(unit)
            if all(worker.is_waiting for worker in self._workers):
                return
            self.receive()

    def add(self, worker: "Worker") -> "Worker":
        self._workers.append(worker)
        return worker

    def receive(self) -> None:
        """Wait for messages, and handle them. Raises Unavailable if a worker has been silent for too long."""
        poll = select.poll()
        by_descriptor = {worker.socket.fileno(): worker for worker in self._workers if not worker.is_done}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        look_s, began_s = self._stalled_s / LOOKS, time.monotonic()
        ready = poll.poll(look_s * 1000)
        waited_s = min(time.monotonic() - began_s, look_s)  # more if this process was stopped as well
        for worker in by_descriptor.values():
            worker.silent_s = 0.0 if worker.is_waiting else worker.silent_s + waited_s
        try:
            for descriptor, _ in ready:
                worker = by_descriptor[descriptor]
                worker.silent_s = 0.0
                self._handle(worker, worker.receive())
                while worker.has_more:
                    self._handle(worker, worker.receive())
        except BlockingIOError:  # in the middle of a message
            worker.silent_s = self._stalled_s
        for worker in by_descriptor.values():
            if worker.silent_s >= self._stalled_s:
                place = self._place(worker.unit)
                where = f" in {printable(place)}" if place else ""
                raise Unavailable(
                    f"a process of the {self._what} made no progress{where} for {self._stalled_s:g} s: "
                    "does its file system answer?"
                )

    def _handle(self, worker: "Worker", message: list[Any] | None) -> None:
        match message:
            case ["next" | "part" | "done" as kind, result]:
                if result is not None:
                    self._finish(result)
                worker.is_waiting, worker.is_done = kind == "next", kind == "done"
            case ["alive"]:
                pass
            case ["error", kind, text]:
                # Another kind is a bug, with its traceback.
                error = getattr(dieselfs.errors, kind, RuntimeError)
                raise error(text)
            case _:
                raise Unavailable(
                    f"a process of the {self._what} has ended ({worker.ending()}); "
                    "with --jobs 1 there is only one process"
                )

    def _forked(self) -> "Worker":
        ours, theirs = socket.socketpair()
        # A child never handles one as the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
        try:
            process = os.fork()
            if not process:
                ours.close()
                self._be_worker(theirs, before)
        except OSError as error:
            ours.close()
            raise Unavailable(f"no process can be started: {error.strerror}; try --jobs 1") from None
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Worker(process, ours, self._stalled_s)

    def _be_worker(self, end: socket.socket, mask: Iterable[int]) -> NoReturn:
        code = EXIT_BUG
        try:
            for number in _ENDINGS:  # a terminal sends them to all processes: the command decides
                is_order = number == signal.SIGTERM
                signal.signal(number, signal.default_int_handler if is_order else signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            sandbox.end_with_parent(signal.SIGKILL)
            for other in self._workers:
                other.socket.close()
            gc.freeze()  # the entries of a chunk are many objects, without cycles
            gc.disable()
            self._run_work(Link(end, self._stalled_s))
            code = EXIT_OK
        finally:
            os._exit(code)

    def _run_work(self, link: Link) -> None:
        try:
            link.tell("done", self._work(link))
        except DieselfsError as error:
            link.tell("error", type(error).__name__, str(error))
        except Exception:  # a bug: the command shows it
            link.tell("error", "", traceback.format_exc())
        except KeyboardInterrupt:
            """The command ends it."""


class Worker:
    """A worker, as its parent has it. `is_waiting`: for a unit; `is_done`: all that it was given is done; `unit`: its
    last one; `silent_s`: for how long its parent has waited for its next message.
    """

    def __init__(self, process: int, end: socket.socket, stalled_s: float) -> None:
        self.socket = end
        timeout = struct.pack("@ll", int(stalled_s), int(stalled_s % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self.unit: Unit = ()
        self.silent_s = 0.0
        self.is_waiting = self.is_done = False
        self._process = process
        self._handle = ProcessHandle(process)  # not yet reaped, so it is the worker
        self._messages, self._orders = Reader(end.fileno()), Writer(end.fileno())

    def receive(self) -> list[Any] | None:
        """The next message; None if it has ended. Raises BlockingIOError if the rest of one does not come."""
        with suppress(ConnectionResetError):
            found = self._messages.receive(lambda: None)
            return found[0] if found else None
        return None

    @property
    def has_more(self) -> bool:
        return self._messages.has_more

    def give(self, unit: Unit) -> None:
        self.unit = unit
        self._send("unit", unit)

    def end(self) -> None:
        self._send("end")

    def _send(self, *message: Any) -> None:
        self.is_waiting = False
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` notices it
            self._orders.put(*message)
            self._orders.flush()

    def ending(self) -> str:
        """How a worker has ended whose socket is closed."""
        self._handle.wait(END_TIMEOUT_S)
        found = os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return "its socket is closed"
        is_exit = found.si_code == os.CLD_EXITED
        return f"exit code {found.si_status}" if is_exit else signal.Signals(found.si_status).name

    def close(self) -> None:
        """End it, if it has not ended; it begins no other request. One that even SIGKILL does not wake ends later."""
        if self._handle.kill(0.0 if self.is_done else END_TIMEOUT_S):
            os.waitpid(self._process, 0)
        self._handle.close()
        self.socket.close()


def in_processes(what: str, jobs: int) -> Spread:
    """Spreads the units of a transfer over as many processes; one works in this one. `what`: names it in messages."""
    return partial(in_threads, jobs=1) if jobs == 1 else partial(_in_processes, what=what, jobs=jobs)


def _in_processes(transfer: Transfer, what: str, jobs: int) -> None:
    units = transfer.units()

    def work(link: Link) -> None:
        link.follow(transfer.pulse)
        for result in transfer.work(link.units()):
            link.result = result

    Workers(what, jobs, lambda: next(units, None), work, transfer.finish, lambda _: transfer.place).run()
