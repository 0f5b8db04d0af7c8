"""Sockets that listen at the addresses of servers. This module opens sockets, and removes the files of Unix sockets."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dieselfs.errors import InvalidInput, Unavailable, os_errors_as
from dieselfs.net.address import Address, TcpAddress, UnixAddress
from dieselfs.net.sockets import reachable_path

LISTEN_BACKLOG = 512


@contextmanager
def listening_at(address: Address) -> Iterator[list[socket.socket]]:
    """Sockets that listen at `address`: of a name, one for each of its addresses. Closes them at the end of the block,
    and removes the file of a Unix socket. Raises Unavailable with the reason, InvalidInput. Blocks for a name.
    """
    with ExitStack() as stack:
        with os_errors_as(Unavailable, f"cannot listen on {address}"):
            if isinstance(address, TcpAddress):
                listeners = _tcp_listeners(stack, address)
            else:
                listeners = [stack.enter_context(_unix_listener(address))]
        try:
            yield listeners
        finally:
            if isinstance(address, UnixAddress):
                Path(address.path).unlink(missing_ok=True)


def _tcp_listeners(stack: ExitStack, address: TcpAddress) -> list[socket.socket]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners = []
    for family, kind, protocol, _, where in found:
        listener = stack.enter_context(socket.socket(family, kind, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(LISTEN_BACKLOG)
        listeners.append(listener)
    return listeners


def _unix_listener(address: UnixAddress) -> socket.socket:
    """A Unix socket for the own user only; replaces the stale socket of a dead server."""
    path = Path(address.path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInput(f"cannot listen on {address}: the path exists and is no socket")
        with socket.socket(socket.AF_UNIX) as probe, reachable_path(address.path) as name:
            if probe.connect_ex(name) == 0:
                raise Unavailable(f"cannot listen on {address}: a server is listening there already")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    old_mask = os.umask(0o177)
    try:
        with reachable_path(address.path) as name:
            listener.bind(name)
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old_mask)
    return listener
