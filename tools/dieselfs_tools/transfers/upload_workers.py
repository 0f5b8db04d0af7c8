"""Processes that upload folder trees: each lists folders, reads, packs and sends. This module forks.

A worker is a fork of the command. It has a `TreeUpload` of its own, whose walk comes from here, a unit at a time: some
of the sources, a folder, or some names of a large folder. What folders it finds become units, for any worker. The
messages (`messages.py`) go through a pair of sockets.

    next, COUNTS, FAILURES, UNITS, PATHS    the unit is walked: these are below it, and are in it; wants another one
    units, UNITS                            more of them, before `next`
    stored, COUNTS, FAILURES                a chunk is stored
    alive                                   entries were read lately, or chunks are on their way to the server
    done, COUNTS, FAILURES, GENERATION, FIRST   all that it was given is stored
    error, KIND, TEXT                       the upload has failed

    unit, UNIT; end                         to a worker that waits

COUNTS and FAILURES are what its report has more than at its last message.
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
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, NoReturn

import dieselfs.errors
from dieselfs.errors import EXIT_BUG, EXIT_OK, DieselfsError, Unavailable
from dieselfs.names import printable
from dieselfs.process import sandbox
from dieselfs.process.launch import ProcessHandle
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import (
    Failed,
    SourceEntry,
    TreeUpload,
    UploadEntry,
    folder_entries,
    folder_names,
    source_entry,
)
from dieselfs_tools.transfers.messages import Reader, Writer
from dieselfs_tools.transfers.trees import Source, SourceTrees

SOURCES_PER_UNIT = 64
NAMES_PER_UNIT = 1024
"""Of a folder with more names, other workers read the rest. A unit fits into the buffer of a socket, so giving it to a
worker never waits."""
UNITS_PER_MESSAGE = 16
END_TIMEOUT_S = 3.0
"""Until a worker that is told to stop has sent what it is sending; then it is killed."""
STALLED_S = 600.0
"""A worker that says nothing for this long is stopped, or waits in one call for its source: a network file system that
does not answer. To list a folder of millions of names there may take minutes."""
LOOKS = 4
"""Signs of life of a worker in this time."""

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Unit = Sequence[Any]
"""`(start, stop)`: sources; or `(top, path of the top, folder, path of the folder, names)`, where names are separated
by NUL bytes, and none stand for all."""

Start = Callable[[Callable[[], object]], TreeUpload]
"""Makes the upload of one worker; its argument is called after each stored chunk."""


class UploadWorkers:
    """One upload of folder trees by several processes, by `run`. `report` has its progress, for any thread."""

    def __init__(
        self,
        trees: SourceTrees,
        jobs: int,
        start: Start,
        noted: Callable[[Sequence[bytes]], object] | None = None,
        stalled_s: float = STALLED_S,
    ) -> None:
        """`jobs`: processes at most; `noted` is called with the paths of all entries of the sources; `stalled_s`: a
        worker with work that says nothing for this long ends the upload.
        """
        self.report = TransferReport()
        self.first: tuple[bytes, bytes] | None = None
        self._trees = trees
        self._jobs = jobs
        self._start = start
        self._noted = noted
        self._stalled_s = stalled_s
        self._pending: list[Unit] = []
        self._workers: list[_Worker] = []

    def run(self) -> TransferReport:
        """Upload everything; returns when all is stored. Raises what `TreeUpload.run` does, and Unavailable if a worker
        is killed, or makes no progress. Chunks stored by then stay, and the next run continues; all workers have ended.
        """
        for start, stop in self._trees.disjoint():
            units: list[Unit] = [
                (at, min(at + SOURCES_PER_UNIT, stop)) for at in range(start, stop, SOURCES_PER_UNIT)
            ]
            self._pending = units[::-1]
            try:
                self._run()
            finally:
                for worker in self._workers:
                    worker.close()
                self._workers = []
        return self.report

    def _run(self) -> None:
        while self._pending or not all(worker.is_waiting for worker in self._workers):
            for worker in [worker for worker in self._workers if worker.is_waiting]:
                if self._pending:
                    worker.give(self._pending.pop())
            for _ in self._pending[: self._jobs - len(self._workers)]:
                self._workers.append(self._forked())
            self._receive()
        self.report.is_all_found = True
        for worker in self._workers:
            worker.end()
        while not all(worker.is_done for worker in self._workers):
            self._receive()

    def _receive(self) -> None:
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
                raise Unavailable(self._stall(worker))

    def _stall(self, worker: "_Worker") -> str:
        unit = worker.unit
        if len(unit) == 2:
            place = self._trees.sources[unit[0] if self._trees.listed is None else 0].source
        else:
            place = unit[2] if unit else b""
        where = f" in {printable(place)}" if place else ""
        return f"a process of the upload made no progress{where} for {self._stalled_s:g} s: does its source answer?"

    def _handle(self, worker: "_Worker", message: list[Any] | None) -> None:
        match message:
            case ["next", counts, failures, units, paths]:
                self.report.add(counts, failures)
                self._pending += reversed(units)
                if self._noted is not None:
                    self._noted(paths)
                worker.is_waiting = True
            case ["alive"]:
                pass
            case ["units", units]:
                self._pending += reversed(units)
            case ["stored", counts, failures]:
                self.report.add(counts, failures)
            case ["done", counts, failures, generation, first]:
                self.report.add(counts, failures)
                self.first = self.first or (first and tuple(first))
                self.report.generation = max(self.report.generation, generation)
                worker.is_done = True
            case ["error", kind, text]:
                error = getattr(
                    dieselfs.errors, kind, RuntimeError
                )  # another one is a bug, with its traceback
                raise error(text)
            case _:
                raise Unavailable(
                    f"a process of the upload has ended ({worker.ending()}); with --jobs 1 there is only one process"
                )

    def _forked(self) -> "_Worker":
        ours, theirs = socket.socketpair()
        before = signal.pthread_sigmask(
            signal.SIG_BLOCK, _ENDINGS
        )  # a child never handles one as the command
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
        return _Worker(process, ours, self._stalled_s)

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
            gc.freeze()  # entries of a chunk are many objects, without cycles
            gc.disable()
            _Work(self._trees, self._start, end, self._noted is not None, self._stalled_s).run()
            code = EXIT_OK
        finally:
            os._exit(code)


class _Worker:
    """A worker, as its parent has it. `is_waiting`: for a unit; `is_done`: all that it was given is stored; `unit`: its
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
        """End it, if it has not ended; it sends no other chunk. One that even SIGKILL does not wake ends later."""
        if self._handle.kill(0.0 if self.is_done else END_TIMEOUT_S):
            os.waitpid(self._process, 0)
        self._handle.close()
        self.socket.close()


@dataclass(eq=False)
class _Work:
    """What a worker does, in its process."""

    trees: SourceTrees
    start: Start
    end: socket.socket
    has_paths: bool
    stalled_s: float

    def run(self) -> None:
        self._orders, self._messages = Reader(self.end.fileno()), Writer(self.end.fileno())
        self._lock = Lock()  # guards `_messages` and what of the report is sent
        self._sent, self._failures_sent = TransferReport().counts(), 0
        try:
            self._upload = self.start(self._stored)
            self._report = self._upload.report
            self._upload.run(self._walk)
            self._tell("done", *self._news(), self._report.generation, self._upload.first)
        except DieselfsError as error:
            self._tell("error", type(error).__name__, str(error))
        except Exception:  # a bug: the command shows it
            self._tell("error", "", traceback.format_exc())
        except KeyboardInterrupt:
            """The command ends it."""

    def _tell(self, *message: Any) -> None:
        with self._lock, suppress(BrokenPipeError, ConnectionResetError):  # the command ends it
            self._messages.put(*message)
            self._messages.flush()

    def _news(self) -> tuple[Sequence[int], Sequence[tuple[str, str]]]:
        """Counts and failures of the report that were not sent. Only the thread that walks, and a stored chunk."""
        with self._lock:
            counts, failures = self._report.counts(), self._report.failures[self._failures_sent :]
            news = [now - before for now, before in zip(counts, self._sent, strict=True)]
            self._sent, self._failures_sent = counts, self._failures_sent + len(failures)
            return news, failures

    def _beat(self) -> None:
        """Tell that the upload makes progress, or waits for the server, while it does."""
        seen = -1
        while True:
            time.sleep(self.stalled_s / LOOKS / 2)
            steps = self._upload.steps + self._report.found_files
            if steps != seen or self._upload.is_sending:
                self._tell("alive")
            seen = steps

    def _stored(self) -> None:
        self._tell("stored", *self._news())

    def _walk(self, failed: Failed) -> Iterator[UploadEntry]:
        """The entries of all units that are given."""
        Thread(target=self._beat, name="dieselfs-beat", daemon=True).start()
        below, paths = list[Unit](), list[bytes]()
        while (unit := self._next(below, paths)) is not None:
            below, paths = [], []
            for entry in self._entries(unit, below, failed):
                if self.has_paths:
                    paths.append(entry.path)
                yield entry

    def _next(self, below: list[Unit], paths: list[bytes]) -> Unit | None:
        """Report a unit; returns the next one, None at the end. Raises Unavailable if the command wants no more."""
        self._tell("next", *self._news(), below, paths)
        with suppress(ConnectionResetError):
            match self._orders.receive(lambda: None):
                case ["unit", list() as unit], _:
                    return unit
                case ["end"], _:
                    return None
        raise Unavailable("the command has ended")

    def _entries(self, unit: Unit, below: list[Unit], failed: Failed) -> Iterator[SourceEntry]:
        """The selected entries of a unit; folders in it are added to `below`."""
        if len(unit) == 2:
            for source in self.trees.between(unit[0], unit[1], failed):
                yield from self._selected(source, source_entry(source.source, source.path, failed), below)
            return
        top, top_path, folder, path, joined = unit
        names = joined.split(b"\0") if joined else folder_names(folder, failed)
        if len(names) > NAMES_PER_UNIT:
            places = range(NAMES_PER_UNIT, len(names), NAMES_PER_UNIT)
            parts = [(*unit[:4], b"\0".join(names[at : at + NAMES_PER_UNIT])) for at in places]
            for at in range(0, len(parts), UNITS_PER_MESSAGE):
                self._tell("units", parts[at : at + UNITS_PER_MESSAGE])
        entries = folder_entries(folder, path, names[:NAMES_PER_UNIT], failed)
        yield from self._selected(Source(top, top_path, True), entries, below)

    def _selected(
        self, source: Source, entries: Iterator[SourceEntry], below: list[Unit]
    ) -> Iterator[SourceEntry]:
        for entry in entries:
            if entry.is_folder and not self.trees.is_pruned(source, entry):
                below.append((source.source, source.path, entry.source, entry.path, b""))
            if self.trees.is_wanted(source, entry):
                yield entry
