"""Processes that share the work of one command, a unit at a time. This module forks.

A worker is a fork of the command, and has all that it had. The messages (`messages.py`) go through a pair of sockets.

    next, RESULT     wants a unit: its first one, or the last one is done
    part, RESULT     at any time: something is done
    alive            there was progress lately, or a server works for the worker
    done, RESULT     all that it was given is done
    error, KIND, TEXT    the work has failed

    unit, UNIT; end      to a worker that has asked (`roster.py`)
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
from dieselfs_tools.transfers.roster import Roster, State, Unit

END_TIMEOUT_S = 3.0
"""Until a worker that is told to stop has ended its request; then it is killed."""
STALLED_S = 600.0
"""A worker that says nothing for this long is stopped, or waits in one call for a file system that does not answer. To
list a folder of millions of names there may take minutes."""
LOOKS = 4
"""Signs of life of a worker in this time."""

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

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
            self.tell("next", self.result)
            self.result = order = None
            with suppress(ConnectionResetError):
                order = self._orders.receive(lambda: None)
            match order:
                case ["unit", list() as unit], _:
                    yield unit
                case ["end"], _:
                    return
                case _:
                    raise Unavailable("the command has ended")

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
        work: Callable[[Link], Any],
        finish: Callable[[Any], object],
        place: Callable[[Unit], bytes],
        stalled_s: float = STALLED_S,
    ) -> None:
        """`what`: names the command in messages; `jobs`: processes at most. `work` runs in each worker; what it
        returns, and all its other results but None, go to `finish`, which may call `add`. `place`: of a unit, in
        messages; `stalled_s`: a worker with a unit that says nothing for this long ends the command.
        """
        self._what = what
        self._jobs = jobs
        self._work = work
        self._finish = finish
        self._place = place
        self._stalled_s = stalled_s
        self._workers: list[Worker] = []
        self._roster = Roster(jobs, ())

    def run(self, units: Iterable[Unit]) -> None:
        """Do all units; then no worker is left. Raises the errors of workers, those of `units` and `finish`, and
        Unavailable if a worker is killed, or makes no progress.
        """
        self._roster = Roster(self._jobs, units)
        try:
            while True:
                for number, unit in self._roster.gifts():
                    self._workers[number].give(unit)
                if self._roster.is_short():
                    self.begin(self._forked())
                for number in self._roster.ends():
                    self._workers[number].end()
                if self._roster.is_over():
                    return
                self.receive()
        finally:
            for worker in self._workers:
                worker.close()
            self._workers = []

    def add(self, units: Sequence[Unit]) -> None:
        """More units, which come before all others."""
        self._roster.add(units)

    def begin(self, worker: "Worker") -> None:
        self._workers.append(worker)
        self._roster.begin()

    def receive(self) -> None:
        """Wait for messages, and handle them. Raises Unavailable if a worker has been silent for too long."""
        poll = select.poll()
        states = self._roster.states
        numbers = [number for number, state in enumerate(states) if state is not State.DONE]
        by_descriptor = {self._workers[number].socket.fileno(): number for number in numbers}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        look_s, began_s = self._stalled_s / LOOKS, time.monotonic()
        ready = poll.poll(look_s * 1000)
        waited_s = min(time.monotonic() - began_s, look_s)  # more if this process was stopped as well
        for number in numbers:
            worker = self._workers[number]
            worker.silent_s = 0.0 if states[number] is State.FREE else worker.silent_s + waited_s
        try:
            for descriptor, _ in ready:
                number = by_descriptor[descriptor]
                worker = self._workers[number]
                worker.silent_s = 0.0
                self._handle(number, worker.receive())
                while worker.has_more:
                    self._handle(number, worker.receive())
        except BlockingIOError:  # in the middle of a message
            worker.silent_s = self._stalled_s
        for worker in self._workers:
            if worker.silent_s >= self._stalled_s:
                place = self._place(worker.unit)
                where = f" in {printable(place)}" if place else ""
                raise Unavailable(
                    f"a process of the {self._what} made no progress{where} for {self._stalled_s:g} s: "
                    "does its file system answer?"
                )

    def _handle(self, number: int, message: list[Any] | None) -> None:
        match message:
            case ["next" | "part" | "done" as kind, result]:
                if result is not None:
                    self._finish(result)
                if kind == "next":
                    self._roster.ask(number)
                elif kind == "done":
                    self._roster.leave(number)
                    self._workers[number].is_done = True
            case ["alive"]:
                pass
            case ["error", kind, text]:
                # Another kind is a bug, with its traceback.
                error = getattr(dieselfs.errors, kind, RuntimeError)
                raise error(text)
            case _:
                raise Unavailable(
                    f"a process of the {self._what} has ended ({self._workers[number].ending()}); "
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
    """A worker, as its parent has it. `is_done`: all that it was given is done; `unit`: its last one;
    `silent_s`: for how long its parent has waited for its next message.
    """

    def __init__(self, process: int, end: socket.socket, stalled_s: float) -> None:
        self.socket = end
        timeout = struct.pack("@ll", int(stalled_s), int(stalled_s % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self.unit: Unit = ()
        self.silent_s = 0.0
        self.is_done = False
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
    def work(link: Link) -> None:
        link.follow(transfer.pulse)
        for result in transfer.work(link.units()):
            link.result = result

    Workers(what, jobs, work, transfer.finish, lambda _: transfer.place).run(transfer.units())
