"""Fixed ports for servers that are restarted on the same port. This module opens sockets.

They lie outside the kernel's range of ephemeral ports, so no other program gets one between choice and use.
"""

import os
import random
import socket

HOST = "127.0.0.1"
PORTS = range(10_000, 20_000)
BUS = 10_000
"""A node of Redis Cluster also listens this far above its port."""
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))

_choice = random.SystemRandom()  # other processes choose as well
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free, as are those BUS above, and that no other test worker returns."""
    found: list[int] = []
    while len(found) < count:
        port = _choice.choice(PORTS[_WORKER::_WORKERS])
        if port not in _given and all(map(_is_free, (port, port + BUS))):
            _given.add(port)
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
