"""How the daemon of a mount replaces a supervisor that died together with its keeper. This module starts processes.

A daemon that was ready once holds all that the next supervisor needs, as descriptors: the command line, the status
file, the snapshot, and the channel to the zygote, beside what the daemon gave away itself. When supervisor and keeper
have died, the daemon starts another supervisor, which adopts daemon and zygote. All that is essential lies in the new
channel before the process starts, so it is not lost if the daemon is killed at this moment.
"""

import os
import socket
import sys
from collections.abc import Sequence
from typing import NamedTuple

from dieselfs_client.supervision.control_channel import ControlChannel, receive_inheritance
from dieselfs_client.supervision.status import MemoryFile

SUPERVISOR = "supervisor"
"""Name of the descriptor of its command line, a memory file."""
STATUS = "status"
ZYGOTE = "zygote-"
"""Prefix of the name of the supervisor's end of the channel to the zygote; the process ID follows."""
DAEMON = "daemon-"
"""The same for the daemon; 0 follows before its process ID is known."""
OWNER = "owner"
"""The read end of a pipe, whose other end the processes hold that the mount is for: it ends with the last of them."""
OWNED = "--owner"
"""Before the descriptor to report on; the descriptor OWNER follows."""
ADOPT = "--adopt"
"""In place of the descriptor to report on; the daemon's end of the new channel follows."""


def is_entrusted(name: str) -> bool:
    """Whether a descriptor is for the next supervisor alone, so that the daemon has no use of its own for it."""
    return name in (SUPERVISOR, STATUS, OWNER) or name.startswith(ZYGOTE)


def remembered_command(arguments: Sequence[str]) -> int:
    """A memory file with the command line that starts this program, with `arguments` in place of its own."""
    interpreter = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]]
    file = MemoryFile("dieselfs-command")
    file.write(b"\0".join(map(os.fsencode, [*interpreter, *arguments])))
    return file.descriptor


def start_supervisor(command: int, end: socket.socket) -> int:
    """Start the supervisor whose command line is in the memory file `command`, with its end of the channel to this
    daemon. Returns its process ID; the caller waits for its end. Raises OSError.
    """
    words = os.pread(command, os.fstat(command).st_size, 0).split(b"\0")
    place = words.index(ADOPT.encode())
    os.set_inheritable(end.fileno(), True)
    try:
        return os.posix_spawn(
            words[0],
            [*words[: place + 1], b"%d" % end.fileno(), *words[place + 1 :]],
            os.environ,
            setsid=True,
        )
    finally:
        os.set_inheritable(end.fileno(), False)


class Adopted(NamedTuple):
    """What a supervisor receives from the daemon that started it, or has held as the keeper of another one.

    - `held`: descriptors that it keeps, by name; `status`: that of the status file, None if there is none
    - `owner`: OWNER, None for a mount that is for all processes
    - `daemon`, `zygote`: channel and process ID, None if there is none
    - `is_starter`: the daemon has started this supervisor, and tells all that it has told before
    """

    held: dict[str, int]
    status: int | None
    owner: int | None
    daemon: tuple[ControlChannel, int] | None
    zygote: tuple[ControlChannel, int] | None
    is_starter: bool = False


def adopt(end: int) -> Adopted:
    """Receive the inheritance. Raises ConnectionError if the daemon ended before it was complete."""
    os.set_inheritable(end, False)
    daemon = ControlChannel(socket.socket(fileno=end))
    held, _ = receive_inheritance(daemon)
    held.pop(SUPERVISOR, None)
    return adopted_from(held)._replace(daemon=(daemon, 0), is_starter=True)


def adopted_of_service() -> Adopted | None:
    """What the service manager has kept when all processes of a mount ended; None if this is another start."""
    if "LISTEN_PID" not in os.environ:
        return None
    from dieselfs.process.service_manager import stored  # costs memory that others need not pay

    held = stored()
    for descriptor in held.values():
        os.set_inheritable(descriptor, False)
    return adopted_from(held) if held else None


def adopted_from(held: dict[str, int]) -> Adopted:
    """What descriptors are for, by their names. They belong to the result."""
    channels: dict[str, tuple[ControlChannel, int]] = {}
    for name in [name for name in held if name.startswith((ZYGOTE, DAEMON))]:
        kind, _, process = name.rpartition("-")
        channels[kind + "-"] = ControlChannel(socket.socket(fileno=held.pop(name))), int(process)
    status, owner = held.pop(STATUS, None), held.pop(OWNER, None)
    return Adopted(held, status, owner, channels.get(DAEMON), channels.get(ZYGOTE))
