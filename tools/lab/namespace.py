"""Named network namespaces, each with its own host name (UTS): threads enter them, and their processes are ended.

Needs root and `ip`.
"""

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path("/run/netns")
"""Where `ip netns` keeps a file for each namespace."""
END_TIMEOUT_S = 20.0
COMMAND_TIMEOUT_S = 20.0

_CLONE_NEWUTS = 0x04000000
_POLL_S = 0.01
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """Lives until `end`."""

    def __init__(self, namespace: str, hostname: str) -> None:
        """Create it, with loopback up. Raises OSError, AssertionError."""
        self.namespace = namespace
        command("ip", "netns", "add", namespace)
        self._network = os.open(FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
        self._uts = _new_uts(hostname)
        with self.inside():
            command("ip", "link", "set", "lo", "up")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Until the end of the block, this thread opens sockets and starts processes and threads in it.

        Running threads, also those of a pool, stay in their namespaces.
        """
        back = [_own("net"), _own("uts")]
        try:
            for descriptor in (self._network, self._uts):
                enter(descriptor)
            yield
        finally:
            for descriptor in back:
                enter(descriptor)
                os.close(descriptor)

    def processes(self) -> list[int]:
        """All but this one."""
        return processes_in(self.namespace)

    def end(self) -> None:
        """Kill its processes and remove it, with its links."""
        remove(self.namespace)
        for descriptor in (self._network, self._uts):
            os.close(descriptor)


def names(prefix: str) -> list[str]:
    """Of all namespaces with a prefix."""
    return sorted(path.name for path in FOLDER.glob(f"{prefix}*"))


def processes_in(name: str) -> list[int]:
    """The processes in a namespace but this one, without zombies."""
    wanted = os.stat(FOLDER / name)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has ended
                network = os.stat(entry / "ns/net")
                if (network.st_dev, network.st_ino) == (wanted.st_dev, wanted.st_ino):
                    found.append(int(entry.name))
    return found


def kill_in(name: str) -> None:
    """Kill all processes in a namespace, also those started meanwhile."""

    def is_empty() -> bool:
        running = processes_in(name)
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not running

    wait_for(is_empty, f"{name} has no process")


def remove(name: str) -> None:
    """Kill the processes of a namespace and remove it, if it exists, with both ends of its links."""
    with suppress(FileNotFoundError):
        kill_in(name)
        try:
            command("ip", "netns", "delete", name)
        except AssertionError:
            if (FOLDER / name).exists():  # else another process has swept it
                raise


def command(*words: str) -> None:
    """Run a command of iproute2. Raises AssertionError with its error output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = END_TIMEOUT_S) -> None:
    """Poll until the condition holds. Raises AssertionError after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


def _new_uts(hostname: str) -> int:
    """A descriptor of a new UTS namespace."""
    back = _own("uts")
    try:
        _checked(_libc.unshare(_CLONE_NEWUTS))
        socket.sethostname(hostname)
        return _own("uts")
    finally:
        enter(back)
        os.close(back)


def _own(kind: str) -> int:
    return os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def enter(namespace: int) -> None:
    """Move this thread into a namespace. Raises OSError."""
    _checked(_libc.setns(namespace, 0))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
