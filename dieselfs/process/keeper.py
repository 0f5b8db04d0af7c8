"""Runs a command so that nothing of it stays behind. This module forks, and sends and receives signals.

    process       relays signals to the keeper, and ends as it ends
      keeper      a copy of the process: prepares, runs the command, and cleans up
        command   gets the signals of the terminal itself, and those that were sent to the process from the keeper

Both adopt the orphans among their descendants. If one of the two is killed, the other one kills what is left.
"""

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

KILL_TIMEOUT_S = 10.0
"""Killed processes may first have to free much memory."""

_PARENT_DIED = signal.SIGRTMIN
_RELAYED = {
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH),
}
_POLL_S = 0.01
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


def fork_keeper(clean: Callable[[], None]) -> None:
    """Returns in the keeper only. The process waits for it, kills what it left, calls `clean`, and ends as it ended.

    When the process dies, the keeper gets a KeyboardInterrupt; `run_command` raises it too.
    """
    process = os.getpid()
    _adopt_orphans()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_RELAYED, signal.SIGCHLD})
    keeper = os.fork()
    if not keeper:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(_PARENT_DIED, _interrupt)
        _adopt_orphans()
        follow_parent(process)
        return
    try:
        status = _relay(keeper)
        kill_descendants()
        clean()
    except BaseException:
        os._exit(signal.SIGKILL + 128)  # never continue as a second keeper
    end_as(status)


def _interrupt(signum: int, _: object) -> None:
    raise KeyboardInterrupt(signum)


def follow_parent(parent: int, signum: int = _PARENT_DIED) -> None:
    """Get this signal when `parent`, the parent of this process, dies; to be called again after a change of rights."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _adopt_orphans() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_command(
    command: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], object] = lambda: None
) -> int:
    """Run a command in the foreground, called by the keeper; returns its status as of waitpid(2).

    `prepare` is called in its process first. Raises OSError if it cannot be run, and KeyboardInterrupt when the process
    has died; then the command may still run.
    """
    keeper = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_RELAYED, signal.SIGCHLD, _PARENT_DIED})

    def begin() -> None:
        prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        follow_parent(keeper, signal.SIGKILL)

    try:
        # One thread forks here, so the function may run between fork and exec.
        process = subprocess.Popen(command, env=environment, preexec_fn=begin)  # as the comment says
        process.returncode = 0  # `_relay` waits for it
        return _relay(process.pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _relay(child: int) -> int:
    """Relay signals until a child has ended; its status. The signals must be blocked."""
    while True:
        got = signal.sigwaitinfo({*_RELAYED, signal.SIGCHLD, _PARENT_DIED})
        if got.si_signo == signal.SIGCHLD:
            for ended, status in _ended_children():
                if ended == child:
                    return status
        elif got.si_signo == _PARENT_DIED:
            raise KeyboardInterrupt(got.si_signo)
        elif got.si_code <= 0:  # sent by a process; those of the terminal reach the child directly
            with suppress(ProcessLookupError):
                os.kill(child, got.si_signo)


def _ended_children() -> list[tuple[int, int]]:
    """The children that have ended, with their status; own ones and adopted ones."""
    found = []
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process, except `spared` and theirs; waits for them, for KILL_TIMEOUT_S at most."""
    end_s = time.monotonic() + KILL_TIMEOUT_S
    while (found := _descendants(spared)) and time.monotonic() < end_s:
        for process in found:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        _ended_children()
        time.sleep(_POLL_S)
    _ended_children()


def _descendants(spared: Collection[int]) -> set[int]:
    parents = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                parents[int(process)] = int(parent)
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {process for process, parent in parents.items() if parent in new and process not in spared}
        found |= new
    return found


def end_as(status: int) -> NoReturn:
    """End this process with the status of another: with its exit code, or by the signal that killed it."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core of the other process is enough
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
        os.kill(os.getpid(), signum)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
