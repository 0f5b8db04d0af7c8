"""Connects sockets with a timeout, and at Unix paths of any length; passes descriptors. This module opens sockets."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from dieselfs.address import Address, TcpAddress
from dieselfs.errors import Unavailable
from dieselfs.limits import CONNECT_TIMEOUT_S, SERVER_GONE_S

_UNIX_PATH_BYTES_MAX = 107
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")


@contextmanager
def reachable_path(path: str) -> Iterator[str]:
    """A name for the Unix socket at `path` that fits into a socket address, for a `path` of any length."""
    if len(os.fsencode(path)) <= _UNIX_PATH_BYTES_MAX:
        yield path
        return
    folder = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{Path(path).name}"
    finally:
        os.close(folder)


def open_socket(address: Address, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """Connect within `timeout_s`. Raises Unavailable with the cause."""
    sock: socket.socket | None = None
    try:
        if isinstance(address, TcpAddress):
            sock = socket.create_connection((address.host, address.port), timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _set_keepalive(sock)
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            sock.settimeout(timeout_s)
            with reachable_path(address.path) as path:
                sock.connect(path)
    except OSError as error:  # timeouts are OSErrors too
        if sock is not None:
            sock.close()
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Unavailable(f"cannot reach the server at {address}: {reason}") from error
    return sock


def _set_keepalive(sock: socket.socket) -> None:
    """The kernel fails the connection when the other machine is silent for SERVER_GONE_S, whatever the timeout."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, round(SERVER_GONE_S / 2))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, round(SERVER_GONE_S / 4))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(SERVER_GONE_S * 1000))


class _HasOptions(Protocol):
    """A socket, of the library or of trio."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


def peer_user(connection: _HasOptions) -> int:
    """The user ID of the process at the other end of a Unix socket."""
    return _credentials(connection)[1]


def peer_process(connection: _HasOptions) -> int:
    """The ID of the process at the other end of a Unix socket (the listener); 0 if it is in another container."""
    return _credentials(connection)[0]


def _credentials(connection: _HasOptions) -> tuple[int, int]:
    """`(process, user)`."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return int(process), int(user)


def rights(descriptor: int) -> list[tuple[int, int, bytes]]:
    """The ancillary data of `sendmsg` that pass a descriptor."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))]


def receive_with_descriptor(
    connection: socket.socket, length: int, descriptors: list[int]
) -> tuple[bytes, int]:
    """Receive up to `length` bytes; returns them and the flags of `recvmsg`. A descriptor that comes with them is
    appended to `descriptors`, whose owner closes it; it is not inherited by programs.
    """
    # Not socket.recv_fds, which ignores its flags (CPython 3.11).
    room = socket.CMSG_LEN(_DESCRIPTOR.size)
    content, extras, flags, _ = connection.recvmsg(length, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, passed in extras:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(passed) == _DESCRIPTOR.size:
            descriptors.extend(_DESCRIPTOR.unpack(passed))
    return content, flags
