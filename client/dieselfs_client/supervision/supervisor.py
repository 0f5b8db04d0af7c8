"""The supervisor of a mount: owns its descriptors, starts the daemon that serves it, and replaces a daemon that died.

    python -m dieselfs_client.supervision.supervisor [--owner PIPE] REPORT LOG MOUNTPOINT COMMAND...
    python -m dieselfs_client.supervision.supervisor --adopt CHANNEL LOG MOUNTPOINT COMMAND...

This module starts processes and takes signals. It knows nothing of datasets, and imports as little as possible: its
memory is used for the life of the mount (13 MB, 6 of them its own; importing `dieselfs.limits` would add 30).

COMMAND starts a *zygote*: a process that has imported everything and opened the dataset, and forks daemons. The first
one is a fork of this process (`zygote_fork.py`). So the mount is served again some 10 ms after a daemon died, not after
half a second, and daemons share most of their memory with the zygote. Once the mount was read, a standby daemon is
forked in advance: it takes over also when the zygote has just died. All are children of the supervisor, unless it has
adopted them; `control_channel.py` lists their messages.

A supervisor that dies is replaced by its *keeper*, a fork that holds what the next one needs (`keeper.py`). When both
have died, or leave ten heartbeats unanswered, the daemon starts another one with `--adopt` (`adoption.py`). The mount
ends when all three die before one has replaced the others.

SIGTERM, SIGINT, SIGHUP: unmount and end; the second time, at once. SIGUSR2: start a new zygote, with the code that is
installed now, and let its daemon take over the mount. The end of PIPE is as SIGTERM. REPORT is a descriptor, or `-`;
LOG a file, or `-` for standard error.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator

from dieselfs.process.restart_policy import RestartPolicy
from dieselfs_client.capabilities import give_up_capabilities, write_no_core_files
from dieselfs_client.library_pages import unmap_clean
from dieselfs_client.supervision.adoption import (
    ADOPT,
    DAEMON,
    OWNED,
    OWNER,
    STATUS,
    SUPERVISOR,
    ZYGOTE,
    Adopted,
    adopt,
    adopted_of_service,
    remembered_command,
)
from dieselfs_client.supervision.child import Child
from dieselfs_client.supervision.control_channel import (
    CHUNK,
    DESCRIPTORS_MAX,
    DESCRIPTORS_SPARE,
    ControlChannel,
    KeptDescriptors,
    Message,
)
from dieselfs_client.supervision.keeper import Copies, Held, Keeper, Succession
from dieselfs_client.supervision.startup_report import StartupReport
from dieselfs_client.supervision.status import (
    STATUS_BYTES_MAX,
    STATUS_NAME,
    MemoryFile,
    SupervisorStatus,
    name_process,
    parse_status,
)
from dieselfs_client.supervision.zygote_fork import fork_zygote

FORK_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 20.0
"""A daemon that still serves open files this long after the order to stop is killed."""
HANDOVER_TIMEOUT_S = 45.0
"""For an upgrade: to finish requests that the kernel cannot send again. Longer than the timeout of a read."""
ZYGOTE_PAUSE_S_MAX = 60.0
"""A zygote that does not start is retried after 1 s, 2 s, 4 s, ... up to this; one that was killed, at once."""
ZYGOTE_FAILURES_MAX = 5
"""Failed starts in a row after which the supervisor unmounts, if there is no daemon."""
TICK_S = 1.0
EXIT_OK, EXIT_BUG = 0, 70
"""As in `dieselfs.errors`."""

_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Supervises one mount.

    - `report`, `log`: see `StartupReport`; `kept_max`: descriptors held for daemons
    - `adopted`: what an earlier supervisor of this mount left, None for a new mount; `owner`: see `adoption.OWNER`
    """

    def __init__(
        self,
        report: int | None,
        log: str | None,
        mountpoint: str,
        command: list[str],
        kept_max: int,
        adopted: Adopted | None = None,
        owner: int | None = None,
    ) -> None:
        self._startup_report = StartupReport(report, log)
        self._owner = owner if adopted is None else adopted.owner
        self._command = command
        self._kept = KeptDescriptors(kept_max)
        self._restart_policy = RestartPolicy()
        self._state = SupervisorStatus(mountpoint, supervisor=os.getpid())
        self._status_file = MemoryFile(STATUS_NAME, None if adopted is None else adopted.status)
        self._own_command = remembered_command([ADOPT, "-" if log is None else log, mountpoint, *command])
        self._keeper = Keeper()
        self._stored = Copies()
        self._is_service = log is None and "NOTIFY_SOCKET" in os.environ
        self._is_new = adopted is None  # no zygote was started
        self._zygote: Child | None = None
        self._zygote_policy = RestartPolicy()
        self._zygote_failures = 0
        self._zygote_next_s = 0.0
        self._successor: Child | None = None  # the zygote of an upgrade
        self._standby: Child | None = None
        self._daemon: Child | None = None
        self._yielding_s: float | None = None
        self._stopping_s: float | None = None
        self._is_clean = True  # the last daemon left no request unanswered
        self._was_ready = False
        self._was_used = False  # by a reader: a mount that nobody reads has no standby daemon
        self._is_unmounted = self._is_abandoned = self._was_told_to_stop = False
        self._outcome: tuple[int, str, str] | None = None  # exit code, kind of error, message
        self._signals, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        if adopted is not None:
            self._adopt(adopted)

    def _adopt(self, adopted: Adopted) -> None:
        """Continue the work of an earlier supervisor."""
        now_s = time.monotonic()
        self._kept.descriptors.update(adopted.held)
        before = parse_status(self._status_file.read(STATUS_BYTES_MAX)) or self._state
        self._state = before._replace(supervisor=os.getpid())
        self._is_clean, self._was_ready = False, True
        if adopted.zygote is not None:
            self._zygote = self._adopted(*adopted.zygote, now_s)
            self._hand_over(self._zygote, self._kept.for_zygote())
        if adopted.daemon is not None:
            self._daemon = self._adopted(*adopted.daemon, now_s)
            if not adopted.is_starter:
                self._entrust()
                self._hand_over(self._daemon, self._kept.for_daemon())
        self._note(f"supervisor {before.supervisor} is gone or did not answer; this one replaces it")

    @staticmethod
    def _adopted(control_channel: ControlChannel, pid: int, now_s: float) -> Child:
        """A child of an earlier supervisor, which may have been killed before it had handed over everything."""
        child = Child(control_channel, now_s)
        if pid:
            child.watch(pid)
        return child

    def run(self) -> int:
        """Run until nothing of the mount is left; returns the exit code.

        After an unexpected error of a mount that was ready, its processes run on: the daemon starts another supervisor.
        Raises Succession, in the keeper alone.
        """
        try:
            while self._outcome is None:
                now_s = time.monotonic()
                self._check_daemon(now_s)
                self._check_zygote(now_s)
                self._check_upgrade(now_s)
                self._start_daemon(now_s)
                self._check_standby(now_s)
                self._write_status()
                self._check_keeper(now_s)
                if self._outcome is None:
                    now_s = time.monotonic()
                    starts_s = self._restart_policy.next_start_s, self._zygote_next_s
                    self._wait(min([TICK_S, *(start_s - now_s for start_s in starts_s if start_s > now_s)]))
        except Exception:  # any: the keeper would end by the same one
            if self._keeper.child is not None:
                self._keeper.child.kill(time.monotonic())
            raise
        finally:
            if self._outcome is not None or not self._was_ready:
                self._clear()
        code, kind, text = self._outcome
        if code != EXIT_OK:
            self._startup_report.failed(kind, text)
        return code

    # -- events --------------------------------------------------------------------------------------------

    def _children(self) -> Iterator[Child]:
        return filter(None, (self._zygote, self._successor, self._standby, self._daemon, self._keeper.child))

    def _wait(self, timeout_s: float) -> None:
        """Wait for events, up to `timeout_s`, and handle them."""
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        for child in self._children():
            if not child.has_hung_up:
                poll.register(child.control_channel, select.POLLIN)
            if child.pidfd is not None and child.status is None:
                poll.register(child.pidfd, select.POLLIN)
        if self._startup_report.descriptor is not None:
            poll.register(self._startup_report.descriptor, 0)  # poll reports an error nevertheless
        if self._owner is not None:
            poll.register(self._owner, 0)  # and an end
        events = dict(poll.poll(timeout_s * 1000))
        if self._startup_report.descriptor in events:
            self._startup_report.forget()
            self._note("interrupted before the mount was ready", is_trouble=False)
            self._take_signal(signal.SIGTERM)
        if self._owner is not None and self._owner in events:
            os.close(self._owner)
            self._owner, self._is_abandoned = None, True
            self._note("the processes that the mount was for have ended")
            self._take_signal(signal.SIGTERM)
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._signals, 4096):
                self._was_told_to_stop |= number in _STOP_SIGNALS
                self._take_signal(number)
        self._reap()
        for child in self._children():
            child.look()
        self._receive_all()

    def _take_signal(self, number: int) -> None:
        if number in _STOP_SIGNALS:
            self._stopping_s = self._stopping_s or time.monotonic()
            self._send(self._daemon, "stop")
        elif number == signal.SIGUSR2 and self._successor is None and self._outcome is None:
            self._note("an upgrade was requested", is_trouble=False)
            self._successor = self._start_zygote()

    def _reap(self) -> None:
        """Collect the status of dead children, after their messages, which include their process IDs."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                self._receive_all()
                _, status = os.waitpid(found.si_pid, 0)
                for child in self._children():
                    if child.pid == found.si_pid:
                        child.status = status

    def _receive_all(self) -> None:
        for child in list(self._children()):
            with contextlib.suppress(BlockingIOError):
                while not child.has_hung_up:
                    message = child.control_channel.receive()
                    if message is None:
                        child.has_hung_up = True
                    else:
                        child.beat_s = time.monotonic()
                        self._take(child, message)

    def _take(self, child: Child, message: Message) -> None:
        word, about, descriptor = message
        if word == "keep" and descriptor is not None:
            self._kept.keep(about, descriptor)
        elif word == "drop":
            self._kept.drop(about)
        elif word == "beat" and child is not self._keeper.child:
            self._send(child, "beat", f"{os.getpid()} {self._keeper.pid}")
        elif word == "born":
            child.watch(int(about))
        elif word == "mounted":
            self._state = self._state._replace(device=about)
        elif word == "view":
            self._state = self._state._replace(view_reason=about)
        elif word == "moved":
            self._state = self._state._replace(mountpoint=about)
        elif word == "warm":
            child.is_ready = True
            if child is self._zygote:
                self._entrust()
        elif word == "ready":
            child.is_ready = True
            self._state = self._state._replace(resends=about == "resends")
            self._was_ready = True
            self._write_status()  # before the report, whose reader may look at once
            self._entrust()
            self._startup_report.ready()
            unmap_clean(has_threads=False)
        elif word == "used":
            self._was_used = True
        elif word == "clean":
            self._is_clean = True
        elif word == "failed":
            code, kind, text = about.split(" ", 2)
            child.exit_report = int(code), kind, text
        elif word == "ended":
            child.exit_report = EXIT_OK, "", ""

    # -- zygotes -------------------------------------------------------------------------------------------

    def _start_zygote(self) -> Child:
        control_channel, theirs = ControlChannel.pair()

        def let_go() -> None:
            control_channel.close()
            theirs.detach()  # the zygote owns it
            self._let_go()

        with theirs:
            end, pid = theirs.fileno(), 0
            if self._is_new:
                self._is_new = False
                pid = fork_zygote(self._command, end, let_go)
            if not pid:
                os.set_inheritable(end, True)
                command = [*self._command, str(end)]
                pid = os.posix_spawn(command[0], command, os.environ, setsid=True)
        child = Child(control_channel, time.monotonic(), pid)
        self._hand_over(child, self._kept.for_zygote())
        return child

    def _check_zygote(self, now_s: float) -> None:
        zygote = self._zygote
        if zygote is not None and zygote.is_gone(now_s):
            zygote.close()
            self._zygote = None
            self._on_zygote_exit(zygote, now_s)
        elif zygote is not None and zygote.has_hung_up:
            zygote.kill(now_s)
        if self._zygote is None and self._outcome is None and now_s >= self._zygote_next_s:
            self._zygote = self._start_zygote()

    def _on_zygote_exit(self, zygote: Child, now_s: float) -> None:
        if not self._was_ready and not zygote.is_ready:
            self._outcome = zygote.exit_report or (EXIT_BUG, "MountError", "")
            return
        self._note(f"the zygote has ended: {zygote.end}")
        was_killed = zygote.status == signal.SIGKILL
        if zygote.is_ready or was_killed:
            self._zygote_failures = 0
            self._zygote_policy.note_death(now_s, zygote.is_ready, was_killed)
            self._zygote_next_s = self._zygote_policy.next_start_s
            return
        self._zygote_next_s = now_s + min(2.0**self._zygote_failures, ZYGOTE_PAUSE_S_MAX)
        self._zygote_failures += 1
        if self._daemon is None and self._zygote_failures >= ZYGOTE_FAILURES_MAX:
            self._outcome = EXIT_BUG, "MountError", self._is_dead(f"no daemon can be started: {zygote.end}")

    def _check_upgrade(self, now_s: float) -> None:
        successor, daemon = self._successor, self._daemon
        if successor is None:
            return
        if successor.is_gone(now_s):
            successor.close()
            self._successor = None
            self._note(f"the upgrade failed, the old daemon continues: {successor.end}")
            self._state = self._state._replace(refusals=self._state.refusals + 1)
        elif successor.is_ready and daemon is None:
            for old in filter(None, (self._zygote, self._standby)):
                old.close()
                old.kill(now_s)
            self._zygote, self._successor, self._standby = successor, None, None
            self._entrust()
            self._state = self._state._replace(upgrades=self._state.upgrades + 1)
        elif successor.is_ready and daemon is not None and daemon.is_ready and self._yielding_s is None:
            self._yielding_s = now_s
            self._send(daemon, "yield")

    # -- the daemon ----------------------------------------------------------------------------------------

    def _check_daemon(self, now_s: float) -> None:
        daemon = self._daemon
        if daemon is None:
            return
        if daemon.is_gone(now_s):
            self._on_daemon_exit(daemon, now_s)
        elif daemon.killed_s is None:
            fault = self._fault_of(daemon, now_s)
            if fault is not None:
                self._note(f"{fault}; killing it")
                daemon.kill(now_s)

    def _fault_of(self, daemon: Child, now_s: float) -> str | None:
        """Why the daemon must be killed; None if it need not be."""
        silent_s = now_s - daemon.beat_s
        if not daemon.pid and silent_s > FORK_TIMEOUT_S:
            if self._zygote is not None:
                self._zygote.kill(now_s)
            return "the zygote hangs"
        if daemon.is_hung(now_s, self._kept.has_requests()):
            return f"daemon {daemon.pid} sent no heartbeat for {silent_s:.0f} s"
        if self._stopping_s is not None and now_s - self._stopping_s > STOP_TIMEOUT_S:
            return f"daemon {daemon.pid} did not stop in time"
        if self._yielding_s is not None and now_s - self._yielding_s > HANDOVER_TIMEOUT_S:
            return f"daemon {daemon.pid} did not hand the mount over in time"
        return None

    def _check_standby(self, now_s: float) -> None:
        """Keep a standby daemon of a mount that was read, except while a daemon starts or an upgrade is in progress."""
        standby, daemon = self._standby, self._daemon
        if standby is not None and standby.is_gone(now_s):
            standby.close()
            self._standby = standby = None
        is_due = self._was_used and standby is None and self._successor is None
        if is_due and daemon is not None and daemon.is_ready:
            self._standby = self._fork(now_s)

    def _fork(self, now_s: float) -> Child | None:
        zygote = self._zygote
        if zygote is None or not zygote.is_ready or zygote.has_hung_up:
            return None
        control_channel, theirs = ControlChannel.pair()
        with theirs:
            try:
                zygote.control_channel.send("fork", "", theirs.fileno())
            except OSError:  # it has ended; `_wait` finds out
                zygote.has_hung_up = True
                control_channel.close()
                return None
        return Child(control_channel, now_s)

    def _start_daemon(self, now_s: float) -> None:
        if self._outcome is not None or self._daemon is not None:
            return
        if self._stopping_s is not None:
            self._outcome = EXIT_OK, "", ""
            return
        if now_s < self._restart_policy.next_start_s:
            return
        self._daemon, self._standby = self._standby or self._fork(now_s), None
        if self._daemon is not None:
            if self._was_ready:
                self._entrust()
            self._keeper.brief(now_s, self._inheritance())  # before the daemon can run without this process
            self._hand_over(self._daemon, self._kept.for_daemon(), "clean" if self._is_clean else "")
            self._daemon.beat_s = time.monotonic()  # receiving thousands of descriptors takes a while
            self._is_clean = False

    def _on_daemon_exit(self, daemon: Child, now_s: float) -> None:
        daemon.close()
        self._daemon = None
        if daemon.exit_report is not None:
            self._is_unmounted = True
            self._outcome = daemon.exit_report
        elif self._yielding_s is not None and (daemon.status == 0 or self._is_clean):
            self._note("the mount is handed over", is_trouble=False)
        else:
            self._note(f"daemon {daemon.pid} {daemon.end}" if daemon.pid else "no daemon was forked")
            self._state = self._state._replace(restarts=self._state.restarts + 1)
            was_killed = daemon.status in (None, signal.SIGKILL) and daemon.killed_s is None
            if was_killed:
                self._kept.drop_chunks()
            reason = self._restart_policy.note_death(now_s, daemon.is_ready, was_killed)
            if reason is not None:
                self._outcome = EXIT_BUG, "MountError", self._is_dead(reason)
        self._yielding_s = None

    def _write_status(self) -> None:
        daemon = self._daemon
        now = self._state._replace(
            daemon=0 if daemon is None else daemon.pid, is_served=daemon is not None and daemon.is_ready
        )
        self._status_file.write(json.dumps(now._asdict()).encode())

    # -- the keeper ----------------------------------------------------------------------------------------

    def _check_keeper(self, now_s: float) -> None:
        """Keep a keeper of a mount that was ready, and tell it what there is."""
        if not self._keeper.check(now_s) and self._was_ready and self._outcome is None:
            try:
                self._keeper.fork(now_s, self._inheritance(), self._let_go)
            except OSError as error:
                self._note(f"cannot fork a keeper: {error.strerror}")
        wanted = self._inheritance()
        self._keeper.brief(now_s, wanted)
        if self._was_ready and self._outcome is None:
            self._store(
                {name: held for name, held in wanted.items() if not name.startswith((ZYGOTE, DAEMON))}
            )

    def _store(self, wanted: dict[str, Held]) -> None:
        """Let the service manager have copies of these descriptors, for the end of all processes."""
        if self._is_service:  # else the import would cost each supervisor memory for nothing
            from dieselfs.process.service_manager import store

            with contextlib.suppress(TimeoutError):  # the rest follows in the next round
                self._stored.update(store, wanted)

    def _inheritance(self) -> dict[str, Held]:
        """What the next supervisor needs, except chunks: the daemon sends them again."""
        found: dict[str, Held] = {STATUS: (self._status_file.descriptor, 0.0)}
        if self._owner is not None:
            found[OWNER] = self._owner, 0.0
        for name, descriptor in self._kept.descriptors.items():
            if not name.startswith(CHUNK):
                found[name] = descriptor, 0.0
        for kind, child in ((ZYGOTE, self._zygote), (DAEMON, self._daemon)):
            if child is not None:
                found[f"{kind}{child.pid}"] = child.control_channel.fileno(), child.born_s
        return found

    def _let_go(self) -> None:
        """In a fork: close its copies of what the supervisor has open."""
        signal.set_wakeup_fd(-1)
        for child in self._children():
            child.close()
        self._kept.close()
        self._startup_report.forget()
        own = self._signals, self._wakeup, self._own_command, self._status_file.descriptor, self._owner
        for descriptor in own:
            if descriptor is not None:
                os.close(descriptor)

    # -- messages ------------------------------------------------------------------------------------------

    def _send(self, child: Child | None, word: str, about: str = "", descriptor: int | None = None) -> None:
        if child is not None:
            with contextlib.suppress(OSError):  # it has ended or hangs; heartbeats show that
                child.control_channel.send(word, about, descriptor)

    def _entrust(self) -> None:
        """Give the daemon what it needs to replace this process."""
        self._send(self._daemon, "keep", SUPERVISOR, self._own_command)
        self._send(self._daemon, "keep", STATUS, self._status_file.descriptor)
        if self._owner is not None:
            self._send(self._daemon, "keep", OWNER, self._owner)
        for name, descriptor in self._kept.for_zygote().items():
            self._send(self._daemon, "keep", name, descriptor)
        zygote = self._zygote
        if zygote is not None and zygote.is_ready and not zygote.has_hung_up:
            self._send(self._daemon, "keep", f"{ZYGOTE}{zygote.pid}", zygote.control_channel.fileno())

    def _hand_over(self, child: Child, descriptors: dict[str, int], how: str = "") -> None:
        with contextlib.suppress(OSError):  # as above
            for name, descriptor in descriptors.items():
                child.control_channel.send_patiently("keep", name, descriptor)
            child.control_channel.send_patiently("go", how)

    def _note(self, text: str, is_trouble: bool = True) -> None:
        """Log it; `is_trouble`: also show it in `dlcmd mounts`."""
        if is_trouble:
            self._state = self._state._replace(trouble=text)
        self._startup_report.note(text)

    # -- the end -------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """End all processes, and unmount. A mount that fails after it was ready stays, dead: an empty folder in its
        place would look like a dataset without files.
        """
        began_s = time.monotonic()
        for child in self._children():
            child.kill(began_s)  # before it can notice that the channel is closed
            child.control_channel.close()
            child.has_hung_up = True
        while not all(child.is_gone(time.monotonic()) for child in self._children()):
            self._wait(TICK_S)
        self._store({})
        self._kept.close()  # now the kernel fails the requests that still wait
        is_failed = self._was_ready and self._outcome is not None and self._outcome[0] != EXIT_OK
        is_stopped = self._was_told_to_stop and not self._was_ready
        if not is_failed and (self._is_abandoned or not self._is_unmounted or is_stopped):
            # Imported here, as it would double the memory of the supervisor.
            from dieselfs_client.mount.points.layers import remove_mount

            remove_mount(self._state.mountpoint, self._state.device, is_stopped)

    def _is_dead(self, reason: str) -> str:
        place = self._state.mountpoint
        end = "; reads fail until it is unmounted or mounted again (dlcmd umount, dlcmd mount)"
        return f"{place}: {reason}{end if self._was_ready else ''}"


_OPTIONS = -3
"""The place of the options of the mount in the command line of its zygote."""


def main() -> None:
    report, *others = sys.argv[1:]
    adopted, owner = adopted_of_service(), None
    if report == OWNED:
        owner, report, *others = int(others[0]), *others[1:]
        os.set_inheritable(owner, False)
    if report == ADOPT:
        report, end, *others = "-", *others
        adopted = adopt(int(end))
    log, mountpoint, *command = others
    descriptor = None if report == "-" else int(report)
    if descriptor is not None:
        os.set_inheritable(descriptor, False)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the zygote: a process with threads must not fork
    os.umask(0o077)
    write_no_core_files()
    give_up_capabilities("write" in command[_OPTIONS].split(","))
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
    kept_max = min(DESCRIPTORS_MAX, descriptors_max - DESCRIPTORS_SPARE)
    os.chdir("/")  # pins no folder of the user
    log_file = None if log == "-" else log
    gc.freeze()  # else each collection copies the pages that the keeper shares with this process
    while True:
        name_process("dieselfs-mount")
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            sys.exit(Supervisor(descriptor, log_file, mountpoint, command, kept_max, adopted, owner).run())
        except Succession as succession:
            descriptor, owner, adopted = None, None, succession.adopted


if __name__ == "__main__":
    main()
