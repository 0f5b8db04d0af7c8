"""The channel between the supervisor of a mount and a process that it started. This module uses sockets.

A message is one datagram: a word, an argument, and at most one descriptor. A supervisor lives for months in little
memory, so this module imports little, and its limits are here and not in `dieselfs.limits`.

    to a new daemon                 keep NAME + descriptor ..., go [clean]
    to the daemon                   stop, yield, beat SUPERVISOR KEEPER, keep NAME + descriptor
    from the daemon                 born PID, beat, keep NAME + descriptor, drop NAME, mounted DEVICE,
                                    view REASON, moved MOUNTPOINT, ready [resends], used, clean, ended,
                                    failed CODE KIND TEXT
    to the zygote                   keep snapshot + descriptor, go, fork + the daemon's end of its channel
    to both                         go, again: tell another supervisor all that was told before
    to and from the keeper          keep NAME + descriptor, drop NAME, beat
    from the zygote                 keep snapshot + descriptor, warm, failed CODE KIND TEXT
    to a new supervisor             keep NAME + descriptor ..., go, and what it would have heard from the daemon
"""

import contextlib
import os
import select
import socket
import struct
from typing import NamedTuple, Self

MESSAGE_BYTES_MAX = 4096
"""A longer message is truncated."""
SEND_TIMEOUT_S = 5.0
"""A starting process that receives nothing for this long hangs."""
SNAPSHOT = "snapshot"
DEVICE = "device"
"""Names of descriptors. Zygotes get the first, daemons all others."""
CHUNK = "chunk-"
"""Prefix of the names of descriptors that hold memory. The supervisor closes them when another process killed a
daemon: the kernel does so when memory is short, and would kill the next process if no memory came free.
"""
DESCRIPTORS_MAX = 32_768
DESCRIPTORS_SPARE = 64
"""Descriptors of the process that are not for the daemons' use."""
DESCRIPTORS_MIN = 2 * DESCRIPTORS_SPARE
"""A mount on a machine with a lower limit is refused."""
_DESCRIPTOR = struct.Struct("=i")
_CREDENTIALS = struct.Struct("=iII")


class Message(NamedTuple):
    """`descriptor` belongs to the receiver."""

    word: str
    about: str
    descriptor: int | None


class ControlChannel:
    """One end. `receive` and `send` raise BlockingIOError instead of waiting for a message or for room."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[Self, socket.socket]:
        """The end of this process, and the socket for the other process. Programs inherit neither."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    @property
    def maker(self) -> int:
        """The process that made the pair."""
        credentials = self._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process: int = _CREDENTIALS.unpack(credentials)[0]
        return process

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def send(self, word: str, about: str = "", descriptor: int | None = None) -> None:
        """Raises BlockingIOError, and OSError if the other end is closed."""
        content = f"{word} {about}".encode("utf-8", "surrogateescape")[:MESSAGE_BYTES_MAX]
        socket.send_fds(self._end, [content], [] if descriptor is None else [descriptor])

    def send_patiently(self, word: str, about: str = "", descriptor: int | None = None) -> None:
        """As `send`, but waits for room. Raises TimeoutError after SEND_TIMEOUT_S."""
        self._end.settimeout(SEND_TIMEOUT_S)
        try:
            self.send(word, about, descriptor)
        finally:
            self._end.setblocking(False)

    def receive(self) -> Message | None:
        """The next message; None when the other end is closed and all of its messages were received."""
        room = socket.CMSG_SPACE(_DESCRIPTOR.size)
        try:
            content, extras, _, _ = self._end.recvmsg(MESSAGE_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # raised once if it closed with unread messages
            return self.receive()
        if not content:
            return None
        word, _, about = content.decode("utf-8", "surrogateescape").partition(" ")
        return Message(word, about, _DESCRIPTOR.unpack(extras[0][2])[0] if extras else None)

    def receive_patiently(self, timeout_s: float | None) -> Message | None:
        """As `receive`, but waits for a message. Raises TimeoutError."""
        self._end.settimeout(timeout_s)
        try:
            return self.receive()
        finally:
            self._end.setblocking(False)


def receive_inheritance(control_channel: ControlChannel) -> tuple[dict[str, int], str]:
    """The descriptors that the supervisor keeps for a new process, by name, and the argument of `go`.

    Waits without a limit: a standby daemon may wait for months. Raises ConnectionError when the supervisor has ended;
    then no descriptor stays open.
    """
    inherited: dict[str, int] = {}
    try:
        while True:
            message = control_channel.receive_patiently(None)
            if message is None:
                raise ConnectionError("the supervisor has ended")
            if message.word == "go":
                return inherited, message.about
            if message.word == "keep" and message.descriptor is not None:
                if message.about in inherited:  # the supervisor was replaced meanwhile
                    os.close(inherited[message.about])
                inherited[message.about] = message.descriptor
    except BaseException:
        close_all(inherited)
        raise


def close_all(descriptors: dict[str, int]) -> None:
    """Close descriptors, and empty the dictionary."""
    for descriptor in descriptors.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    descriptors.clear()


class KeptDescriptors:
    """What a supervisor keeps for the next daemon. `descriptors`: by name, in the order in which they came;
    `count_max`: further ones are closed at once.
    """

    def __init__(self, count_max: int) -> None:
        self.descriptors: dict[str, int] = {}
        self._count_max = count_max

    def keep(self, name: str, descriptor: int) -> None:
        """Keep it in place of an earlier one of that name, or close it if there is no room."""
        if name in self.descriptors:
            os.close(self.descriptors[name])
        elif len(self.descriptors) >= self._count_max:  # the next daemon fetches the chunk again
            os.close(descriptor)
            return
        self.descriptors[name] = descriptor

    def drop(self, name: str) -> None:
        if name in self.descriptors:
            os.close(self.descriptors.pop(name))

    def drop_chunks(self) -> None:
        for name in [name for name in self.descriptors if name.startswith(CHUNK)]:
            self.drop(name)

    def close(self) -> None:
        close_all(self.descriptors)

    def for_daemon(self) -> dict[str, int]:
        return {name: descriptor for name, descriptor in self.descriptors.items() if name != SNAPSHOT}

    def for_zygote(self) -> dict[str, int]:
        return {name: descriptor for name, descriptor in self.descriptors.items() if name == SNAPSHOT}

    def has_requests(self) -> bool:
        """Whether the kernel has requests that no daemon has taken."""
        if DEVICE not in self.descriptors:
            return False
        poll = select.poll()
        poll.register(self.descriptors[DEVICE], select.POLLIN)
        return bool(poll.poll(0))
