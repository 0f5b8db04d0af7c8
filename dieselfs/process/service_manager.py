"""What a process tells the service manager that started it (sd_notify of systemd). This module sends datagrams.

It imports next to nothing, because supervisors use it.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

SERVICE_READY = "READY=1"
SERVICE_STOPPING = "STOPPING=1"


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send a state to the manager's socket, if the environment names one. False if it was not sent; never fails.

    A leading @ stands for the null byte of an abstract socket.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.setblocking(False)
        manager.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
        return True
    return False
