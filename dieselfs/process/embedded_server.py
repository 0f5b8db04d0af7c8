"""The private server of embedded use: found on its Unix socket, or started. This module opens sockets and starts
processes.

With no server configured, the library uses a server process over SQLite and a local folder. It belongs to the home
(`DIESELFS_HOME`), is shared by all processes of the user that use this home, and ends when idle. The library starts it
as a program and does not import it, so the layers stay apart.
"""

import os
import socket
from pathlib import Path

from dieselfs.errors import AccessDenied, DieselfsError, Unavailable
from dieselfs.net.address import UnixAddress
from dieselfs.net.sockets import open_socket, peer_user
from dieselfs.process.state_dirs import locked

START_TIMEOUT_S = 30.0
"""Until a started server accepts; it may first apply chunks that a crash left unapplied."""

_STARTS_MAX = 3


def socket_path(home: Path) -> Path:
    return home / "run" / "server.sock"


def log_path(home: Path) -> Path:
    return home / "log" / "server.log"


def connect_embedded(home: Path) -> socket.socket:
    """A connection to the server of `home`, which is started if it does not run. Raises Unavailable, and AccessDenied
    if that server, which needs no key, is a process of another user than this one and root.
    """
    address = UnixAddress(str(socket_path(home)))
    for _ in range(_STARTS_MAX):  # a server that is just ending refuses once
        try:
            return _of_this_user(open_socket(address), address)
        except Unavailable:
            _start_unless_accepting(home, address)
    return _of_this_user(open_socket(address), address)


def _of_this_user(connection: socket.socket, address: UnixAddress) -> socket.socket:
    user = peer_user(connection)
    if user in (os.geteuid(), 0):
        return connection
    connection.close()
    raise AccessDenied(
        f"the server at {address} belongs to user ID {user}, not to you; set DIESELFS_HOME to a folder of yours"
    )


def _start_unless_accepting(home: Path, address: UnixAddress) -> None:
    """Start the server, one process at a time; it outlives this process. Raises Unavailable."""
    try:
        for folder in (home, home / "run", home / "log"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(home / "run" / "start.lock", START_TIMEOUT_S):
            try:
                open_socket(address).close()
            except Unavailable:
                _start(home)
    except BlockingIOError:
        raise Unavailable(
            f"another process did not finish starting the server of {home} within {START_TIMEOUT_S:g} s"
        ) from None
    except OSError as error:
        raise Unavailable(
            f"cannot use {home} for embedded data: {error.strerror}; set DIESELFS_HOME"
        ) from None


def _start(home: Path) -> None:
    from dieselfs.process.launch import launch, python_command

    command, log = (
        python_command("dieselfs_server.main", "--embedded", str(home), "--ready-fd"),
        log_path(home),
    )
    try:
        launch(lambda fd: [*command, str(fd)], log, START_TIMEOUT_S, "the embedded server", Unavailable)
    except DieselfsError as error:
        raise Unavailable(f"the embedded server did not start: {error} (log: {log})") from None
