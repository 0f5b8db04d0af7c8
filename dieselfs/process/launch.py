"""Starts, watches and ends background processes. This module starts processes and sends signals.

A started process is not our child, has a session of its own, works in `/` and logs to a file that only this user can
read. It reports by one line on a descriptor, `ready` or the name and the message of an error (`LaunchReport`), and
closes it. A process that ends without a line has failed.
"""

import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import dieselfs.errors
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.process.service_manager import SERVICE_READY, notify
from dieselfs.process.state_dirs import open_private

DEATH_TIMEOUT_S = 10.0
"""A killed process may first have to free much memory."""


class ProcessHandle:
    """A process that is not a child. A signal never reaches a later process with the same ID."""

    def __init__(self, process: int) -> None:
        """Raises ProcessLookupError if it has ended, OSError if it cannot be watched."""
        self.process = process
        self._descriptor = os.pidfd_open(process)
        # A finalizer: one thread may still use the descriptor while another drops the object.
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def send(self, number: signal.Signals) -> None:
        """Raises ProcessLookupError if it has ended, OSError."""
        signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it has not within `timeout_s`."""
        poll = select.poll()  # select.select fails with descriptors above 1,023
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @property
    def has_ended(self) -> bool:
        return self.wait(0.0)

    def end(self, timeout_s: float) -> bool:
        """Send SIGTERM and wait; False if it has not ended within `timeout_s`. Raises OSError."""
        with suppress(ProcessLookupError):
            self.send(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self, timeout_s: float) -> bool:
        """As `end`, with SIGKILL after `timeout_s`; False if it has not ended DEATH_TIMEOUT_S after that."""
        if self.end(timeout_s):
            return True
        with suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        return self.wait(DEATH_TIMEOUT_S)


def wait_for_end(process: int, timeout_s: float) -> bool:
    """Wait until a process has ended; False if it has not within `timeout_s`. Raises OSError."""
    try:
        return ProcessHandle(process).wait(timeout_s)
    except ProcessLookupError:
        return True


READY = "ready"
END_TIMEOUT_S = 10.0
"""A process that is not ready in time is killed when SIGTERM has not ended it within this."""
_SHELL_TIMEOUT_S = 10.0
_REPORT_BYTES_MAX = 64 << 10

_DETACH = '"$@" >&2 & echo $!'
"""The shell ends at once, so that the process has no parent that must wait for it."""


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of dieselfs."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """These variables, with which a Python program imports the same modules as this process, also from a checkout.

    Standard folders are left out: an upgrade of Python may change them.
    """
    standard = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    added = [os.path.abspath(path) for path in sys.path if not path.startswith(standard)]
    return {**variables, "PYTHONPATH": os.pathsep.join(added)}


def start(command: Sequence[str], log: Path, descriptors: Sequence[int] = (), folder: str = "/") -> int:
    """Start a background process in `folder` that inherits these descriptors; returns its process ID.

    Raises OSError. If the program cannot be run, the process ends at once, with the reason in the log.
    """
    with open(open_private(log), "ab") as output:
        shell = subprocess.run(
            ["/bin/sh", "-c", _DETACH, "sh", *command],
            env=module_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            pass_fds=descriptors,
            start_new_session=True,
            cwd=folder,
            timeout=_SHELL_TIMEOUT_S,
            check=False,  # a missing process ID shows a failure
        )
    if not shell.stdout:
        raise OSError(f"/bin/sh ended with exit code {shell.returncode} (log: {log})")
    return int(shell.stdout)


def launch(
    command: Callable[[int], Sequence[str]],
    log: Path,
    timeout_s: float,
    what: str,
    failure: type[DieselfsError],
    descriptors: Sequence[int] = (),
) -> int:
    """Start a background process, and wait until it is ready; returns its process ID.

    `command` gets the descriptor to report on; `what` names the process in messages; the process inherits
    `descriptors`. Raises the error that the process
    reports, Unavailable if it is not ready within `timeout_s`, and `failure` if it cannot be started or ends without a
    report. After an error or an interrupt the process is ended.
    """
    ready, report = os.pipe()
    with open(ready, "rb", buffering=0) as pipe:
        try:
            process = start(command(report), log, [report, *descriptors])
        except (OSError, subprocess.TimeoutExpired) as error:
            raise failure(f"cannot start {what}: {error} (log file: {log})") from None
        finally:
            os.close(report)
        handle = None
        with suppress(ProcessLookupError):
            handle = ProcessHandle(process)
        try:
            _await_report(pipe.fileno(), timeout_s, what, failure, log)
        except BaseException:
            if handle is not None:
                handle.kill(END_TIMEOUT_S)
            raise
    return process


def _await_report(pipe: int, timeout_s: float, what: str, failure: type[DieselfsError], log: Path) -> None:
    end_s = time.monotonic() + timeout_s
    received = b""
    poll = select.poll()  # select.select fails with descriptors above 1,023
    poll.register(pipe, select.POLLIN)
    while not received.endswith(b"\n"):
        if not poll.poll(max(end_s - time.monotonic(), 0) * 1000):
            raise Unavailable(
                f"{what} was not ready within {timeout_s:g} s; the server may be slow or down (log: {log})"
            )
        more = os.read(pipe, _REPORT_BYTES_MAX)
        if not more:
            raise failure(f"{what} ended before it was ready; see its log: {log}")
        received += more
    line = received.decode("utf-8", "surrogateescape").rstrip("\n")
    if line != READY:
        kind, _, message = line.partition(" ")
        error: type[DieselfsError] = getattr(dieselfs.errors, kind, failure)
        raise error(message or f"{what} ended before it was ready; see its log: {log}")


class LaunchReport:
    """The other end of `launch`: a process reports once. Without a descriptor no launcher waits."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            os.set_inheritable(descriptor, False)

    def ready(self) -> bool:
        """Report that the process can be used, to the service manager if nobody else waits. False if the launcher no
        longer waits: it was interrupted.
        """
        if self._descriptor is None:
            notify(SERVICE_READY)
        return self._write(READY)

    def failed(self, error: Exception) -> None:
        self._write(f"{type(error).__name__} {' '.join(str(error).splitlines())}")

    def _write(self, line: str) -> bool:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return True
        try:
            os.write(descriptor, f"{line}\n".encode("utf-8", "surrogateescape"))
        except BrokenPipeError:
            return False
        finally:
            os.close(descriptor)
        return True
