"""Ports for servers that are told theirs, so that they can be started again on the same. This module opens sockets.

They are none of those that the kernel gives to whoever leaves the choice to it: such a port may be gone before the
server has it.
"""

import random
import socket

HOST = "127.0.0.1"
PORTS = range(10_000, 22_000)
BUS = 10_000
"""A node of Redis Cluster listens so much above its port as well."""

_choice = random.SystemRandom()  # other processes choose as well
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, and that were not given to anybody in this process; nor were those that
    are BUS above.
    """
    found: list[int] = []
    while len(found) < count:
        port = _choice.choice(PORTS)
        both = {port, port + BUS}
        if _given.isdisjoint(both) and all(map(_is_free, both)):
            _given.update(both)
            found.append(port)
    return found


def free_port() -> int:
    """One of `free_ports`."""
    (port,) = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
