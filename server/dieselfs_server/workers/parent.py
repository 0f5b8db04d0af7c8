"""The parent of the workers of a server: it listens, and gives each connection to a worker (`assignment.py`); it starts
the workers, replaces those that die or hang, and ends them. This module forks, passes descriptors, and takes signals.

The parent has one thread and one loop. It imports what the workers need, and opens none of it: they are its forks, so
they start in milliseconds and share the memory of all modules. A worker that dies costs its connections alone; what
waits in the listeners goes to others. The messages, one datagram each:

    to a worker       NUMBER + the descriptor of a connection; settings as a JSON object (`reloading.py`)
    from a worker     ready; gone NUMBER ..., which is its heartbeat too; failed ERROR TEXT
"""

import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dieselfs.errors
from dieselfs.errors import EXIT_BUG, DieselfsError, Unavailable
from dieselfs.process.keeper import follow_parent
from dieselfs.process.restart_policy import RestartPolicy, how_it_ended
from dieselfs.process.service_manager import SERVICE_STOPPING, notify
from dieselfs_server.workers.assignment import Assignment

STOP_S = 20.0
"""Workers that are still there this time after the order to stop are killed."""
START_S = 1800.0
"""A worker that is not ready this time after its start is killed. It may have to apply chunks that a crash left."""
BEAT_S = 1.0
"""A worker sends something this often, from its event loop."""
LATE_BEATS = 3
"""A worker that is silent for as many intervals gets no new connections while there is another one."""
SILENT_BEATS_MAX = 10
"""A worker that is silent for more intervals hangs: it is killed and replaced."""
DEATHS_MAX = 100
"""Workers that may crash or hang within a minute; see `RestartPolicy`."""
PAUSE_S_MAX = 5.0
"""Limit of the pause before a worker that could not start is replaced."""
ACCEPTED_AT_ONCE_MAX = 64
RETRY_S = 0.1
"""Pause after a connection could not be accepted, or no worker had room for it."""
MESSAGE_BYTES_MAX = 4096

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Worker:
    """A worker, or the empty place of one that has died. `failure`: what it has reported; `reason`: why the one before
    it was replaced; `silent_beats`: intervals without a message.
    """

    place: int
    process: int = 0
    channel: socket.socket | None = None
    is_ready: bool = False
    failure: tuple[str, str] | None = None
    reason: str = ""
    silent_beats: int = 0
    settings: bytes = b""
    start_s: float = 0.0
    """When it was started, or is to be."""


class Parent:
    """`run(place, channel, reason)` is a worker: it returns its exit code. Connections of Unix sockets go to the worker
    0.
    """

    def __init__(
        self,
        count: int,
        listeners: Sequence[socket.socket],
        run: Callable[[int, socket.socket, str], int],
        ready: Callable[[], object],
        reload: Callable[[], bytes | None],
    ) -> None:
        """`reason` of a worker: why the one in its place was replaced, or empty. `ready`: called once, when all workers
        take connections. `reload`: called on SIGHUP; returns the settings for workers that run, None to keep theirs.
        """
        self._run_worker, self._ready, self._reload = run, ready, reload
        self._settings = b""  # each SIGHUP makes another object
        self._listeners = listeners
        self._workers = [_Worker(place) for place in range(count)]
        self._assignment = Assignment()
        self._restart_policy = RestartPolicy("workers", DEATHS_MAX, PAUSE_S_MAX)
        self._beat_s = 0.0
        self._held: deque[tuple[socket.socket, str]] = deque()  # accepted, and given to no worker yet
        self._has_begun = self._is_stopping = self._is_accepting = False
        self._accept_from_s = 0.0
        self._failure: DieselfsError | None = None
        self._selector = selectors.DefaultSelector()
        self._signals, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve until a signal to stop. Raises the error of a worker that cannot start; Unavailable."""
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._selector.register(self._signals, selectors.EVENT_READ, self._take_signals)
        for listener in self._listeners:
            listener.setblocking(False)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy all pages that they share
        try:
            while not self._is_stopping:
                self._start_due()
                self._listen()
                self._step()
                self._count_beats()
        finally:
            self._stop()
        if self._failure is not None:
            raise self._failure

    def _step(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            # A signal that came with the end of a channel may have closed that channel.
            is_registered = self._selector.get_map().get(key.fd) is key
            if is_registered and not self._is_stopping:
                key.data()

    def _timeout_s(self) -> float | None:
        now_s = time.monotonic()
        due_s = [each.start_s for each in self._workers if not each.process]
        due_s += [each.start_s + START_S for each in self._workers if each.process and not each.is_ready]
        due_s.append(self._beat_s)
        if self._held or not self._is_accepting:
            due_s.append(self._accept_from_s)
        later = [each for each in due_s if each > now_s]
        return min(later) - now_s if later else 0.0

    # -- workers

    def _count_beats(self) -> None:
        """Kill the workers that hang, after their messages were taken. Intervals of this loop are counted, because the
        whole control group may be stopped for a while.
        """
        if time.monotonic() < self._beat_s:
            return
        self._beat_s = time.monotonic() + BEAT_S
        self._send_settings()
        for worker in self._workers:
            worker.silent_beats += worker.is_ready
            if worker.silent_beats > SILENT_BEATS_MAX and worker.failure is None:
                silent_s = SILENT_BEATS_MAX * BEAT_S
                worker.failure = "Unavailable", f"worker {worker.place} did not answer for {silent_s:g} s"
                _kill(worker)

    def _start_due(self) -> None:
        """Start the workers whose time has come: at first the worker 0 alone, which makes what a new store lacks."""
        now_s = time.monotonic()
        for worker in self._workers:
            if worker.process and not worker.is_ready and now_s > worker.start_s + START_S:
                _kill(worker)
            if not worker.process and worker.start_s <= now_s:
                self._start(worker)
            if worker.place == 0 and not worker.is_ready and not self._has_begun:
                return

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        process = os.fork()
        if not process:
            code = EXIT_BUG
            try:
                self._forget()
                follow_parent(parent, signal.SIGTERM)
                ours.close()
                code = self._run_worker(worker.place, theirs, worker.reason)
            except BaseException:  # no frame of the parent may continue here
                log.exception("a worker failed with an internal error")
            finally:
                with contextlib.suppress(Exception):
                    sys.stderr.flush()
                os._exit(code)
        theirs.close()
        ours.setblocking(False)
        worker.process, worker.channel, worker.is_ready, worker.failure = process, ours, False, None
        worker.silent_beats, worker.settings = 0, self._settings
        worker.start_s = time.monotonic()
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(worker))

    def _forget(self) -> None:
        """In a worker: close what is the parent's, and take signals as a new process does."""
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a terminal; the parent sends settings
        self._selector.close()
        os.close(self._signals)
        os.close(self._wakeup)
        for each in (*self._listeners, *(held for held, _ in self._held)):
            each.close()
        for worker in self._workers:
            if worker.channel is not None:
                worker.channel.close()
        os.environ.pop("NOTIFY_SOCKET", None)  # the parent speaks for all

    def _hear(self, worker: _Worker) -> bool:
        """Take one message; False if there is none."""
        assert worker.channel is not None
        try:
            content = worker.channel.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return False
        except OSError:
            content = b""
        if not content:  # it has died, or is about to
            self._selector.unregister(worker.channel)
            return False
        worker.silent_beats = 0
        word, *rest = content.decode("utf-8", "replace").split(" ", 2)
        if word == "gone":
            for number in " ".join(rest).split():
                self._assignment.ended(int(number))
        elif word == "ready":
            worker.is_ready = True
            self._assignment.begin(worker.place)
            if not self._has_begun and all(each.is_ready for each in self._workers):
                self._has_begun = True
                self._ready()
        elif word == "failed":
            worker.failure = rest[0], rest[1] if len(rest) > 1 else ""
        return True

    def _take_signals(self) -> None:
        numbers = os.read(self._signals, MESSAGE_BYTES_MAX)
        for number in _STOP_SIGNALS:
            if number in numbers:
                log.info("stopping: %s", number.name)
                self._is_stopping = True
                return
        if signal.SIGHUP in numbers and (settings := self._reload()) is not None:
            self._settings = settings
            self._send_settings()
        self._bury()

    def _send_settings(self) -> None:
        """Send them to the workers that have others. One whose queue is full gets them later."""
        for worker in self._workers:
            if worker.channel is not None and worker.settings is not self._settings:
                with contextlib.suppress(OSError):
                    worker.channel.send(self._settings)
                    worker.settings = self._settings

    def _bury(self) -> None:
        """Note the workers that have died."""
        for worker in self._workers:
            if worker.process and (status := _ended(worker.process)) is not None:
                self._note_death(worker, status)

    def _note_death(self, worker: _Worker, status: int) -> None:
        self._close_channel(worker)
        was_ready, process = worker.is_ready, worker.process
        worker.process, worker.is_ready = 0, False
        self._assignment.end(worker.place)
        was_killed = status == signal.SIGKILL and worker.failure is None
        failure = _error(
            worker.failure, f"worker {worker.place} {how_it_ended(os.waitstatus_to_exitcode(status))}"
        )
        now_s = time.monotonic()
        reason = self._restart_policy.note_death(now_s, was_ready, was_killed)
        if not self._has_begun or reason is not None:
            self._failure, self._is_stopping = failure, True
            return
        log.error("process %d: %s; another one takes its place", process, failure)
        worker.reason = str(failure)
        worker.start_s = max(now_s, self._restart_policy.next_start_s)

    def _close_channel(self, worker: _Worker) -> None:
        """Take what it has said before its end."""
        channel = worker.channel
        assert channel is not None
        if channel in self._selector.get_map():
            while self._hear(worker):
                pass
        if channel in self._selector.get_map():
            self._selector.unregister(channel)
        channel.close()
        worker.channel = None

    # -- connections

    def _listen(self) -> None:
        """Watch the listeners while a worker takes connections."""
        now_s = time.monotonic()
        if self._held and now_s >= self._accept_from_s:
            self._give_held()
        may_accept = (
            self._has_begun
            and bool(self._assignment.workers)
            and not self._held
            and now_s >= self._accept_from_s
        )
        if may_accept == self._is_accepting:
            return
        self._is_accepting = may_accept
        for listener in self._listeners:
            if may_accept:
                self._selector.register(
                    listener, selectors.EVENT_READ, lambda found=listener: self._accept(found)
                )
            else:
                self._selector.unregister(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                connection, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or memory: the others wait in the kernel
                log.error("cannot accept a client: %s", error.strerror)
                self._accept_from_s = time.monotonic() + RETRY_S
                return
            self._held.append((connection, str(peer[0]) if isinstance(peer, tuple) else ""))
            self._give_held()
            if self._held:
                return

    def _give_held(self) -> None:
        while self._held:
            connection, peer = self._held[0]
            if not self._give(connection, peer):
                self._accept_from_s = time.monotonic() + RETRY_S
                return
            self._held.popleft()
            connection.close()

    def _give(self, connection: socket.socket, peer: str) -> bool:
        """Give a connection to a worker; False if none takes it now."""
        able = {*self._assignment.workers}
        able = {place for place in able if self._workers[place].silent_beats < LATE_BEATS} or able
        if connection.family == socket.AF_UNIX:  # local processes share the memory of one worker
            able &= {0}
        while able:
            place, number = self._assignment.assign(peer, able)
            channel = self._workers[place].channel
            assert channel is not None
            try:
                socket.send_fds(channel, [b"%d" % number], [connection.fileno()])
                return True
            except OSError:  # it is dead, or its queue is full
                self._assignment.ended(number)
                able.remove(place)
        return False

    # -- the end

    def _stop(self) -> None:
        """End all workers, within STOP_S."""
        self._is_stopping = True
        notify(SERVICE_STOPPING)
        for listener in self._listeners:
            listener.close()
        for connection, _ in self._held:
            connection.close()
        end_s = time.monotonic() + STOP_S
        self._signal_all(signal.SIGTERM)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals, selectors.EVENT_READ)
        while any(each.process for each in self._workers):
            if (left_s := end_s - time.monotonic()) <= 0:
                log.error("workers that have not ended within %g s are killed", STOP_S)
                self._signal_all(signal.SIGKILL)
                left_s = STOP_S
            self._selector.select(left_s)
            with contextlib.suppress(BlockingIOError):
                os.read(self._signals, MESSAGE_BYTES_MAX)
            for worker in self._workers:
                if worker.process and _ended(worker.process) is not None:
                    worker.process = 0

    def _signal_all(self, number: signal.Signals) -> None:
        for worker in self._workers:
            _kill(worker, number)


def _kill(worker: _Worker, number: signal.Signals = signal.SIGKILL) -> None:
    if worker.process:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.process, number)


def _ended(process: int) -> int | None:
    """The status of a child that has ended; None if it has not."""
    try:
        found, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if found else None


def _error(reported: tuple[str, str] | None, otherwise: str) -> DieselfsError:
    kind, text = reported or ("", "")
    error = getattr(dieselfs.errors, kind, None) or Unavailable
    return error(text or f"{otherwise}; see the log")
