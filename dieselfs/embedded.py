"""The private server of embedded use: found on its Unix socket, or started. This module opens sockets and
starts processes.

With no server configured, the library talks to a server process of its own over SQLite and a local folder; it
belongs to the home (`DIESELFS_HOME`), is shared by all processes of the user that use this home, and goes
away when idle. The library does not import the server: it starts it as a program, so the layers stay apart.
"""

import fcntl
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dieselfs.errors import Unavailable
from dieselfs.rpc.address import UnixAddress
from dieselfs.rpc.connection import open_socket

START_TIMEOUT_S = 30.0
"""From starting the server until it accepts; it may first replay chunks that a crash left unapplied."""

_POLL_S = 0.02
_STARTS_MAX = 3


def socket_path(home: Path) -> Path:
    return home / "run" / "server.sock"


def log_path(home: Path) -> Path:
    return home / "log" / "server.log"


def connect_embedded(home: Path) -> socket.socket:
    """A connection to the server of `home`, which is started if it does not run.

    Raises Unavailable, saying why.
    """
    address = UnixAddress(str(socket_path(home)))
    for _ in range(_STARTS_MAX):  # a server that is just going away refuses, or vanishes once
        try:
            return open_socket(address, None)
        except Unavailable:
            with _start_lock(home):
                if not _accepts(address):
                    _start(home)
    return open_socket(address, None)


def _accepts(address: UnixAddress) -> bool:
    try:
        open_socket(address, None).close()
    except Unavailable:
        return False
    return True


@contextmanager
def _start_lock(home: Path) -> Iterator[None]:
    """Let one process at a time start the server of `home`."""
    try:
        for folder in (home, home / "run", home / "log"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(home / "run" / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(
            f"cannot use {home} for embedded data: {error.strerror}; set DIESELFS_HOME"
        ) from None
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise Unavailable(
                        f"another process has been starting the server of {home} for too long"
                    ) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


def _start(home: Path) -> None:
    """Start the server and wait until it says that it is ready.

    It detaches itself, and lives on when we end.
    """
    options = ["--embedded", str(home), "--detach", "--ready-fd"]
    # The server sees the modules that we see, also where dieselfs runs from a checkout.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    ready, report = os.pipe()
    try:
        with open(log_path(home), "ab", opener=_private_opener) as log:
            subprocess.run(
                [sys.executable, "-m", "dieselfs_server.main", *options, str(report)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(report,),
                start_new_session=True,
                cwd="/",
                env=environment,
                timeout=START_TIMEOUT_S,
                check=False,  # what went wrong comes through the pipe
            )
        os.close(report)
        report = -1
        poll = select.poll()  # not select.select: who holds many chunks has descriptors above 1,023
        poll.register(ready, select.POLLIN)
        is_answer = poll.poll(START_TIMEOUT_S * 1000)
        answer = os.read(ready, 4096).decode("utf-8", "replace").strip() if is_answer else "no answer in time"
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot start the embedded server: {error}") from None
    finally:
        os.close(ready)
        if report >= 0:
            os.close(report)
    if answer != "ready":
        raise Unavailable(
            f"the embedded server did not start: {answer or 'it ended'} (log: {log_path(home)})"
        )


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
