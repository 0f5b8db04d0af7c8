"""The line between the supervisor of a mount and a process that it started. This module uses sockets.

A message is one datagram: a word, what it is about, and at most one descriptor. A supervisor may live for months in
very little memory; so nothing is imported here that it could do without, and limits stand where they are used.

    to the daemon, to begin with    keep NAME + descriptor ..., go [clean]
    to the daemon                   stop, yield
    from the daemon                 born PID, beat, keep NAME + descriptor, drop NAME, mounted DEVICE,
                                    ready [resends], clean, ended, failed CODE KIND TEXT
    to the zygote                   keep snapshot + descriptor, go, fork + the daemon's end of its tether
    from the zygote                 keep snapshot + descriptor, warm, failed CODE KIND TEXT
"""

import contextlib
import os
import socket
import struct
from typing import NamedTuple, Self

MESSAGE_BYTES_MAX = 4096
"""A longer text is cut off."""
SEND_TIMEOUT_S = 5.0
"""Who takes nothing for so long while he is started hangs."""
_DESCRIPTOR = struct.Struct("=i")
_CREDENTIALS = struct.Struct("=iII")


class Message(NamedTuple):
    """`descriptor` belongs to whoever received it."""

    word: str
    about: str
    descriptor: int | None


class Tether:
    """One end. `receive` and `send` raise BlockingIOError when there is nothing, or no room: wait for it first."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[Self, socket.socket]:
        """Our end, and a socket for the other process to make its end of. Neither is inherited by programs."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    @property
    def maker(self) -> int:
        """The process that made the pair."""
        return int(
            _CREDENTIALS.unpack(
                self._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )[0]
        )

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def send(self, word: str, about: str = "", descriptor: int | None = None) -> None:
        """Raises OSError, too, if the other end is closed."""
        content = f"{word} {about}".encode("utf-8", "surrogateescape")[:MESSAGE_BYTES_MAX]
        socket.send_fds(self._end, [content], [] if descriptor is None else [descriptor])

    def send_patiently(self, word: str, about: str = "", descriptor: int | None = None) -> None:
        """As `send`, but waits for room. Raises TimeoutError after a while."""
        self._end.settimeout(SEND_TIMEOUT_S)
        try:
            self.send(word, about, descriptor)
        finally:
            self._end.setblocking(False)

    def receive(self) -> Message | None:
        """The next message; None when the other end is closed, and everything it sent has been received."""
        room = socket.CMSG_SPACE(_DESCRIPTOR.size)
        try:
            content, extras, _, _ = self._end.recvmsg(MESSAGE_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # said once, if it closed with messages of ours that it did not receive
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


def receive_inheritance(tether: Tether) -> tuple[dict[str, int], str]:
    """What the supervisor has kept for a process that begins, by name, and how it is to go.

    Waits for as long as the supervisor lives: one may stand by for months. Raises ConnectionError when it is gone; then
    nothing is left open.
    """
    inherited: dict[str, int] = {}
    try:
        while True:
            message = tether.receive_patiently(None)
            if message is None:
                raise ConnectionError("the supervisor is gone")
            if message.word == "go":
                return inherited, message.about
            if message.word == "keep" and message.descriptor is not None:
                inherited[message.about] = message.descriptor
    except BaseException:
        close_all(inherited)
        raise


def close_all(descriptors: dict[str, int]) -> None:
    """Close descriptors that are kept by name, and forget them."""
    for descriptor in descriptors.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    descriptors.clear()
