"""Keeps a mount alive: owns its descriptors, starts the daemon that serves it, and starts another when that one dies.

    python -m dieselfs_client.supervision.supervisor REPORT LOG MOUNTPOINT COMMAND...

This module starts processes and takes signals. It knows nothing of datasets, and imports as little as possible: what
it takes, it takes for as long as the mount lives (13 MB, of which 6 are its own; the limits of dieselfs would cost 30).

COMMAND starts a *zygote*: a process that has imported everything and opened the dataset, and forks daemons. The next
one is forked in advance, and waits for the word that makes it the daemon. So the mount is served 10 ms after a daemon
died, not after half a second, and daemons share most of their memory with the zygote. All of them are children of the
supervisor, and talk with it as `tether.py` says.

SIGTERM, SIGINT, SIGHUP: unmount and end; once more: at once. SIGUSR2: start a new zygote, with whatever code is
installed by now, and let a daemon of its take the mount over. REPORT is a descriptor, or `-`; LOG a file, or `-` for
standard error.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator

from dieselfs_client.supervision.child import Child
from dieselfs_client.supervision.herald import Herald
from dieselfs_client.supervision.patience import Patience
from dieselfs_client.supervision.record import StatusFile, Supervision, name_process
from dieselfs_client.supervision.tether import Message, Tether, close_all

FORK_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 20.0
"""A daemon that was told to stop, and serves open files for a while, is killed after this."""
HANDOVER_TIMEOUT_S = 45.0
"""For an upgrade: to finish what is under way, where the kernel cannot send it again. Longer than a read may take."""
ZYGOTE_PAUSE_S_MAX = 60.0
"""A zygote that does not come up is tried again after 1 s, 2 s, 4 s, ... up to this."""
ZYGOTE_FAILURES_MAX = 5
"""The mount is given up after so many in a row, if there is no daemon."""
KEPT_DESCRIPTORS_MAX = 32_768
DESCRIPTORS_SPARE = 64
"""Of those that a process may have, for all else."""
TICK_S = 1.0
EXIT_OK, EXIT_BUG = 0, 70
"""As in `dieselfs.errors`."""

SNAPSHOT = "snapshot"
DEVICE = "device"
"""Names of what is kept. Zygotes get the first, daemons all others."""
CHUNK = "chunk-"
"""So begin the names of what takes memory. It is let go of when a daemon is killed by somebody else: the kernel does
that where memory is short, and would go on to the next process if nothing came free.
"""

_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Of one mount. `report` is told how starting goes; `log` is None for standard error."""

    def __init__(
        self, report: int | None, log: str | None, mountpoint: str, command: list[str], kept_max: int
    ) -> None:
        self._herald = Herald(report, log)
        self._command = command
        self._kept_max = kept_max
        self._kept: dict[str, int] = {}
        self._patience = Patience()
        self._state = Supervision(mountpoint, supervisor=os.getpid())
        self._status_file = StatusFile()
        self._zygote: Child | None = None
        self._zygote_failures = 0
        self._zygote_next_s = 0.0
        self._successor: Child | None = None  # the zygote that takes the first one's place in an upgrade
        self._standby: Child | None = None
        self._daemon: Child | None = None
        self._yielding_s: float | None = None
        self._stopping_s: float | None = None
        self._is_clean = True  # no request was taken and not answered
        self._was_ready = False
        self._is_unmounted = False
        self._outcome: tuple[int, str, str] | None = None  # exit code, kind of error, message
        self._signals, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def run(self) -> int:
        """Returns the exit code, when nothing of the mount is left."""
        try:
            while self._outcome is None:
                now_s = time.monotonic()
                self._look_after_daemon(now_s)
                self._look_after_zygote(now_s)
                self._look_after_upgrade(now_s)
                self._start_daemon(now_s)
                self._look_after_standby(now_s)
                self._write_status()
                if self._outcome is None:
                    self._wait(TICK_S)
        finally:
            self._clear()
        return self._say_how_it_ended()

    # -- what happens --------------------------------------------------------------------------------------

    def _children(self) -> Iterator[Child]:
        return (
            child
            for child in (self._zygote, self._successor, self._standby, self._daemon)
            if child is not None
        )

    def _wait(self, timeout_s: float) -> None:
        """Wait until something happens, or it is time to look; take note of it."""
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        for child in self._children():
            if not child.has_hung_up:
                poll.register(child.tether, select.POLLIN)
        poll.poll(timeout_s * 1000)
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._signals, 4096):
                self._take_signal(number)
        self._listen_to_all()
        self._reap()

    def _take_signal(self, number: int) -> None:
        if number in _STOP_SIGNALS:
            self._stopping_s = self._stopping_s or time.monotonic()
            self._tell(self._daemon, "stop")
        elif number == signal.SIGUSR2 and self._successor is None and self._outcome is None:
            self._note("an upgrade was asked for", is_trouble=False)
            self._successor = self._start_zygote()

    def _reap(self) -> None:
        """Learn how children died, after all that they had to say; so who they were was said, too."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                self._listen_to_all()
                _, status = os.waitpid(found.si_pid, 0)
                for child in self._children():
                    if child.pid == found.si_pid:
                        child.status = status

    def _listen_to_all(self) -> None:
        for child in list(self._children()):
            self._listen(child)

    def _listen(self, child: Child) -> None:
        with contextlib.suppress(BlockingIOError):
            while not child.has_hung_up:
                message = child.tether.receive()
                if message is None:
                    child.has_hung_up = True
                else:
                    child.beat_s = time.monotonic()
                    self._take(child, message)

    def _take(self, child: Child, message: Message) -> None:
        word, about, descriptor = message
        if word == "keep" and descriptor is not None:
            self._keep(about, descriptor)
        elif word == "drop" and about in self._kept:
            os.close(self._kept.pop(about))
        elif word == "born":
            child.pid = int(about)
        elif word == "mounted":
            self._state = self._state._replace(device=about)
        elif word == "warm":
            child.is_ready = True
        elif word == "ready":
            child.is_ready = True
            self._state = self._state._replace(resends=about == "resends")
            self._was_ready = True
            self._write_status()  # before anybody is told, who may then look
            self._herald.tell_readiness()
        elif word == "clean":
            self._is_clean = True
        elif word == "failed":
            code, kind, text = about.split(" ", 2)
            child.last_words = int(code), kind, text
        elif word == "ended":
            child.last_words = EXIT_OK, "", ""

    def _keep(self, name: str, descriptor: int) -> None:
        if name in self._kept:
            os.close(self._kept[name])
        elif len(self._kept) >= self._kept_max:  # it will not be there after a restart, and is fetched again
            os.close(descriptor)
            return
        self._kept[name] = descriptor

    # -- zygotes -------------------------------------------------------------------------------------------

    def _start_zygote(self) -> Child:
        tether, theirs = Tether.pair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            command = [*self._command, str(theirs.fileno())]
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads must not fork
            pid = os.posix_spawn(command[0], command, environment, setsid=True)
        child = Child(tether, time.monotonic(), pid)
        self._hand_over(child, [name for name in self._kept if name == SNAPSHOT])
        return child

    def _look_after_zygote(self, now_s: float) -> None:
        zygote = self._zygote
        if zygote is not None and zygote.is_gone(now_s):
            zygote.tether.close()
            self._zygote = None
            self._bear_its_loss(zygote, now_s)
        elif zygote is not None and zygote.has_hung_up:
            zygote.kill(now_s)
        if self._zygote is None and self._outcome is None and now_s >= self._zygote_next_s:
            self._zygote = self._start_zygote()

    def _bear_its_loss(self, zygote: Child, now_s: float) -> None:
        if not self._was_ready and not zygote.is_ready:
            self._outcome = zygote.last_words or (EXIT_BUG, "MountError", "")
            return
        self._note(f"the process that daemons are forked from is gone: {zygote.end}")
        if zygote.is_ready:
            self._zygote_failures = 0
            return
        self._zygote_next_s = now_s + min(2.0**self._zygote_failures, ZYGOTE_PAUSE_S_MAX)
        self._zygote_failures += 1
        if self._daemon is None and self._zygote_failures >= ZYGOTE_FAILURES_MAX:
            self._outcome = EXIT_BUG, "MountError", f"no daemon can be started: {zygote.end}"

    def _look_after_upgrade(self, now_s: float) -> None:
        successor, daemon = self._successor, self._daemon
        if successor is None:
            return
        if successor.is_gone(now_s):
            successor.tether.close()
            self._successor = None
            self._note(f"the upgrade failed, the daemon goes on as it was: {successor.end}")
            self._state = self._state._replace(refusals=self._state.refusals + 1)
        elif successor.is_ready and daemon is None:
            for old in filter(None, (self._zygote, self._standby)):
                old.tether.close()
                old.kill(now_s)
            self._zygote, self._successor, self._standby = successor, None, None
            self._state = self._state._replace(upgrades=self._state.upgrades + 1)
        elif successor.is_ready and daemon is not None and daemon.is_ready and self._yielding_s is None:
            self._yielding_s = now_s
            self._tell(daemon, "yield")

    # -- the daemon ----------------------------------------------------------------------------------------

    def _look_after_daemon(self, now_s: float) -> None:
        daemon = self._daemon
        if daemon is None:
            return
        if daemon.is_gone(now_s):
            self._bury(daemon, now_s)
        elif daemon.killed_s is None:
            fault = self._fault_of(daemon, now_s)
            if fault is not None:
                self._note(f"{fault}; it is killed")
                daemon.kill(now_s)

    def _fault_of(self, daemon: Child, now_s: float) -> str | None:
        """Why a daemon must be killed, if it must."""
        silent_s = now_s - daemon.beat_s
        if not daemon.pid and silent_s > FORK_TIMEOUT_S:
            if self._zygote is not None:
                self._zygote.kill(now_s)
            return "the process that daemons are forked from hangs"
        if daemon.is_hung(now_s, self._has_requests()):
            return f"daemon {daemon.pid} gave no sign of life for {silent_s:.0f} s"
        if self._stopping_s is not None and now_s - self._stopping_s > STOP_TIMEOUT_S:
            return f"daemon {daemon.pid} did not stop in time"
        if self._yielding_s is not None and now_s - self._yielding_s > HANDOVER_TIMEOUT_S:
            return f"daemon {daemon.pid} did not hand the mount over in time"
        return None

    def _has_requests(self) -> bool:
        """Whether the kernel has requests that nobody has taken."""
        if DEVICE not in self._kept:
            return False
        poll = select.poll()
        poll.register(self._kept[DEVICE], select.POLLIN)
        return bool(poll.poll(0))

    def _look_after_standby(self, now_s: float) -> None:
        """Have one waiting, once there is time for that: not while a daemon begins, or an upgrade is under way."""
        standby, daemon = self._standby, self._daemon
        if standby is not None and standby.is_gone(now_s):
            standby.tether.close()
            self._standby = standby = None
        if standby is None and daemon is not None and daemon.is_ready and self._successor is None:
            self._standby = self._fork(now_s)

    def _fork(self, now_s: float) -> Child | None:
        zygote = self._zygote
        if zygote is None or not zygote.is_ready or zygote.has_hung_up:
            return None
        tether, theirs = Tether.pair()
        with theirs:
            try:
                zygote.tether.send("fork", "", theirs.fileno())
            except OSError:  # it is gone, but not buried yet
                zygote.has_hung_up = True
                tether.close()
                return None
        return Child(tether, now_s)

    def _start_daemon(self, now_s: float) -> None:
        if self._outcome is not None or self._daemon is not None:
            return
        if self._stopping_s is not None:
            self._outcome = EXIT_OK, "", ""
            return
        self._daemon, self._standby = self._standby or self._fork(now_s), None
        if self._daemon is not None:
            names = [name for name in self._kept if name != SNAPSHOT]
            self._hand_over(self._daemon, names, "clean" if self._is_clean else "")
            self._daemon.beat_s = time.monotonic()  # to take thousands of descriptors takes it a while
            self._is_clean = False

    def _bury(self, daemon: Child, now_s: float) -> None:
        daemon.tether.close()
        self._daemon = None
        if daemon.last_words is not None:
            self._is_unmounted = True
            self._outcome = daemon.last_words
        elif self._yielding_s is not None and daemon.status == 0:
            self._note("the mount is handed over", is_trouble=False)
        else:
            self._note(f"daemon {daemon.pid} {daemon.end}" if daemon.pid else "no daemon was forked")
            self._state = self._state._replace(restarts=self._state.restarts + 1)
            was_killed = daemon.status in (None, signal.SIGKILL) and daemon.killed_s is None
            if was_killed:
                close_all({name: self._kept.pop(name) for name in [*self._kept] if name.startswith(CHUNK)})
            reason = self._patience.note_death(now_s, daemon.is_ready, was_killed)
            if reason is not None:
                text = f"{self._state.mountpoint}: {reason}; it is unmounted"
                self._outcome = EXIT_BUG, "MountError", text
        self._yielding_s = None

    def _write_status(self) -> None:
        daemon = self._daemon
        now = self._state._replace(
            daemon=0 if daemon is None else daemon.pid, is_served=daemon is not None and daemon.is_ready
        )
        self._status_file.write(now)

    # -- words ---------------------------------------------------------------------------------------------

    def _tell(self, child: Child | None, word: str) -> None:
        if child is not None:
            with contextlib.suppress(OSError):  # it is gone, or does not listen: that is found by other means
                child.tether.send(word)

    def _hand_over(self, child: Child, names: list[str], how: str = "") -> None:
        with contextlib.suppress(OSError):  # as above
            for name in names:
                child.tether.send_patiently("keep", name, self._kept[name])
            child.tether.send_patiently("go", how)

    def _note(self, text: str, is_trouble: bool = True) -> None:
        """Into the log; and trouble also into what `dlcmd mounts` shows."""
        if is_trouble:
            self._state = self._state._replace(trouble=text)
        self._herald.note(text)

    def _say_how_it_ended(self) -> int:
        assert self._outcome is not None
        code, kind, text = self._outcome
        if code != EXIT_OK:
            self._herald.tell_failure(kind, text)
        return code

    # -- the end -------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Leave no process and no mount behind."""
        began_s = time.monotonic()
        for child in self._children():
            child.tether.close()
            child.has_hung_up = True
            child.kill(began_s)
        while not all(child.is_gone(time.monotonic()) for child in self._children()):
            self._wait(TICK_S)
        close_all(self._kept)  # whatever still waits is answered by the kernel now
        if self._state.device and not self._is_unmounted:
            _unmount(self._state.mountpoint, self._state.device)


def _unmount(mountpoint: str, device: str) -> None:
    """Take what is left of a mount out of the tree. Only now something large is imported."""
    from dieselfs.errors import MountError
    from dieselfs_client.mount.mount_table import mount_at
    from dieselfs_client.mount.mounting import unmount

    record = mount_at(mountpoint)
    if record is not None and record.device == device:
        with contextlib.suppress(MountError):  # somebody else was faster
            unmount(mountpoint, lazily=True, is_cut_off=True)


def main() -> None:
    report, log, mountpoint, *command = sys.argv[1:]
    descriptor = None if report == "-" else int(report)
    if descriptor is not None:
        os.set_inheritable(descriptor, False)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    os.umask(0o077)
    name_process("dieselfs-mount")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
    kept_max = min(KEPT_DESCRIPTORS_MAX, descriptors_max - DESCRIPTORS_SPARE)
    os.chdir("/")  # pins no folder of the user
    sys.exit(Supervisor(descriptor, None if log == "-" else log, mountpoint, command, kept_max).run())


if __name__ == "__main__":
    main()
