"""What a process tells the service manager that started it (sd_notify of systemd), and the descriptors that the manager
keeps for it. This module sends datagrams.

It imports next to nothing, because supervisors use it.
"""

import os
import socket
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress

SERVICE_READY = "READY=1"
SERVICE_STOPPING = "STOPPING=1"
SEND_TIMEOUT_S = 0.5
"""A manager that works takes messages at once; a busy machine may let it wait, and few fit into its queue."""
_FIRST_DESCRIPTOR = 3


def notify(state: str, environment: Mapping[str, str] = os.environ, descriptors: Sequence[int] = ()) -> bool:
    """Send a state to the manager's socket, if the environment names one. False if it was not sent within
    SEND_TIMEOUT_S; never fails.

    A leading @ stands for the null byte of an abstract socket.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.settimeout(SEND_TIMEOUT_S)
        to = address.replace("@", "\0", 1) if address[0] == "@" else address
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        manager.sendmsg([state.encode()], passed, 0, to)  # `send_fds` of Python 3.11 ignores the address
        return True
    return False


def store(word: str, name: str = "", descriptor: int | None = None) -> None:
    """`keep`: let the manager keep a copy of a descriptor, also when all processes of the service have ended; `drop`:
    let it close the copies of that name. Raises TimeoutError if it was not sent.
    """
    wanted = "FDSTOREREMOVE" if descriptor is None else "FDSTORE"
    if not notify(f"{wanted}=1\nFDNAME={name}", descriptors=() if descriptor is None else (descriptor,)):
        raise TimeoutError(f"the service manager has not taken {word!r} of {name}")


def stored(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """The descriptors that the manager has kept, and hands to this process; empty for its children."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    return {name: _FIRST_DESCRIPTOR + place for place, name in enumerate(names)}
