"""Network namespaces with names: a thread can step into one, and whatever runs in it is found and ended.

A namespace has a host name of its own as well (UTS); files and process IDs are those of the machine. Needs root and
`ip`.
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
"""Where `ip netns` keeps namespaces; each is a file that stands for it."""
END_TIMEOUT_S = 20.0
COMMAND_TIMEOUT_S = 20.0

_CLONE_NEWUTS = 0x04000000
_POLL_S = 0.01
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """Use `end` in the end."""

    def __init__(self, name: str, hostname: str) -> None:
        """Make a namespace that `ip netns` shows as `name`, with loopback up. Raises OSError, AssertionError."""
        self.name = name
        command("ip", "netns", "add", name)
        self._network = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        self._uts = _new_uts(hostname)
        with self.inside():
            command("ip", "link", "set", "lo", "up")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Until the end of the block, what this thread opens and starts (sockets, processes, threads) is in here.

        Threads that run already stay where they are, also those of a pool.
        """
        back = [
            os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts")
        ]
        try:
            for descriptor in (self._network, self._uts):
                _enter(descriptor)
            yield
        finally:
            for descriptor in back:
                _enter(descriptor)
                os.close(descriptor)

    def processes(self) -> list[int]:
        """The processes that run in here, but for our own."""
        return processes_in(self.name)

    def end(self) -> None:
        """Kill what runs in here and remove the namespace, with its links."""
        remove(self.name)
        for descriptor in (self._network, self._uts):
            os.close(descriptor)


def names(prefix: str) -> list[str]:
    """The namespaces whose names begin so."""
    return sorted(path.name for path in FOLDER.glob(f"{prefix}*"))


def processes_in(name: str) -> list[int]:
    """The processes in a namespace, but for our own; those that have ended and are not waited for do not count."""
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
    """Kill every process in a namespace, and those that they start meanwhile."""

    def is_empty() -> bool:
        running = processes_in(name)
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not running

    wait_for(is_empty, f"{name} is left by its processes")


def remove(name: str) -> None:
    """Kill what runs in a namespace and remove it, if it is there. Its links vanish with it, at both their ends."""
    with suppress(FileNotFoundError):
        kill_in(name)
        try:
            command("ip", "netns", "delete", name)
        except AssertionError:
            if (FOLDER / name).exists():  # else somebody who sweeps was faster
                raise


def command(*words: str) -> None:
    """Run a command of iproute2 to its end. Raises AssertionError with what it says."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = END_TIMEOUT_S) -> None:
    """Ask again and again until it is so; fails when it takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


def _new_uts(hostname: str) -> int:
    """A descriptor of a new UTS namespace, which lives as long as it is open or somebody is in it."""
    back = os.open("/proc/thread-self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc.unshare(_CLONE_NEWUTS))
        socket.sethostname(hostname)
        return os.open("/proc/thread-self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        _enter(back)
        os.close(back)


def _enter(namespace: int) -> None:
    _checked(_libc.setns(namespace, 0))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
