"""One connection to a server, for one thread at a time. This module opens sockets.

Blocking sockets with timeouts, not trio: the library runs inside training programs and DataLoader workers,
which have no event loop. Daemons use the same connections from worker threads.
"""

import math
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import (
    CONNECT_TIMEOUT_S,
    FRAME_BYTES_MAX,
    HANDSHAKE_FRAME_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    SERVER_GONE_S,
)
from dieselfs.rpc import auth
from dieselfs.rpc.address import Address, TcpAddress
from dieselfs.rpc.framing import FRAME_HEADER_BYTES, frame, frame_length
from dieselfs.rpc.messages import PROTOCOL_VERSION, decode_reply, encode_call
from dieselfs.rpc.wire import Buffer, Wire

_UNIX_PATH_BYTES_MAX = 107


@contextmanager
def reachable_path(path: str) -> Iterator[str]:
    """A name for the Unix socket at `path` that fits into a socket address, however long `path` is."""
    if len(os.fsencode(path)) <= _UNIX_PATH_BYTES_MAX:
        yield path
        return
    folder = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{Path(path).name}"
    finally:
        os.close(folder)


def open_socket(
    address: Address, tls: ssl.SSLContext | None, timeout_s: float = CONNECT_TIMEOUT_S
) -> socket.socket:
    """Connect, within `timeout_s`. Raises Unavailable, saying why."""
    sock: socket.socket | None = None
    try:
        if isinstance(address, TcpAddress):
            sock = socket.create_connection((address.host, address.port), timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_silence(sock)
            if tls is not None:
                sock = tls.wrap_socket(sock, server_hostname=address.host)
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            sock.settimeout(timeout_s)
            with reachable_path(address.path) as path:
                sock.connect(path)
    except OSError as error:  # ssl.SSLError and timeouts are OSErrors too
        if sock is not None:
            sock.close()
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Unavailable(f"cannot reach the server at {address}: {reason}") from error
    return sock


def _notice_silence(sock: socket.socket) -> None:
    """Let the kernel find out, whoever waits for how long, that the other machine has been gone for SERVER_GONE_S."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, round(SERVER_GONE_S / 2))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, round(SERVER_GONE_S / 4))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(SERVER_GONE_S * 1000))


class Connection:
    """A connection that has shaken hands.

    After any error but a refusal it is closed and of no further use.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: Address,
        key: auth.Key | None,
        timeout_s: float = CONNECT_TIMEOUT_S,
        total_s: float = math.inf,
    ) -> None:
        """Take over `sock` and prove who we are. `timeout_s` bounds each wait for bytes to move, `total_s` all of them.

        Raises AccessDenied, ProtocolError or Unavailable; then it is closed.
        """
        self._wire = Wire(sock)
        self.address = address
        self._sequence = count(1)
        self.gives_files = False
        """Whether the server may hand out files: we run as its user on its machine, and it has not said otherwise."""
        try:
            self._wire.limit(timeout_s, total_s)
            self._shake_hands(key, is_local=sock.family == socket.AF_UNIX)
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, key: auth.Key | None, is_local: bool) -> None:
        nonce = os.urandom(auth.NONCE_BYTES)
        user, key_id = (key.user, key.key_id) if key else ("", "")
        hello = {"protocol_version": PROTOCOL_VERSION, "user": user, "key_id": key_id, "client_nonce": nonce}
        challenge = self._exchange("hello", hello, (), HANDSHAKE_FRAME_BYTES_MAX)
        if key is None:
            if challenge.is_trusted:
                self.gives_files = is_local
                return
            raise AccessDenied(
                f"the server at {self.address} wants a key: name a key file with --key-file, DIESELFS_KEY_FILE "
                "or the configuration file"
            )
        said = auth.transcript(user, key_id, nonce, challenge.server_nonce)
        proof = auth.client_proof(key, said)
        welcome = self._exchange("prove", {"proof": proof}, (), HANDSHAKE_FRAME_BYTES_MAX)
        if not auth.is_server_proof(key, said, welcome.proof):
            raise AccessDenied(
                f"the server at {self.address} does not know the key of {user!r}: it is not the real one"
            )

    def call(
        self,
        method: str,
        arguments: dict[str, object],
        bulk: Sequence[Buffer] = (),
        timeout_s: float = REQUEST_TIMEOUT_S,
        destination: Callable[[Any], Iterator[memoryview]] | None = None,
        total_s: float = math.inf,
    ) -> tuple[Any, bytearray | None]:
        """Call `method`, sending `bulk` behind it. Returns the reply, and the bulk bytes that follow it, if
        it announces any. With a `destination` they go there instead: a function that gets the reply, and yields one
        piece of memory after the other, each of which is full when it is asked for the next; or it raises, as
        ProtocolError for a reply that cannot be.

        `timeout_s` bounds each wait for bytes to move, `total_s` all waits together. Raises what the server refuses
        with (the connection lives on), or ProtocolError, Unavailable, or what `destination` raises (it is closed).
        """
        self._wire.limit(timeout_s, total_s)
        reply = self._exchange(method, arguments, bulk, FRAME_BYTES_MAX)
        length = getattr(reply, "bulk_length", None) or 0
        if destination is not None:
            self._receive_parts(destination(reply), length)
            return reply, None
        if not length:
            return reply, None
        try:
            received = bytearray(length)
        except BaseException as error:
            self.close()
            if isinstance(error, MemoryError | ValueError | OverflowError):
                raise ProtocolError(f"the server at {self.address} announces {length} bytes") from None
            raise
        self._receive_parts(iter((memoryview(received),)), length)
        return reply, received

    def call_for_file(
        self, method: str, arguments: dict[str, object], timeout_s: float
    ) -> tuple[Any, int | None]:
        """Call `method` on a Unix socket. Returns the reply, and the descriptor that came with it, if one did (not if
        this process has no room for it). The caller closes it.

        Raises as `call`; then there is no descriptor.
        """
        self._wire.limit(timeout_s)
        descriptors: list[int] = []
        try:
            reply = self._exchange(method, arguments, (), FRAME_BYTES_MAX, descriptors)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return reply, descriptors[0] if descriptors else None

    def _receive_parts(self, parts: Iterator[memoryview], length: int) -> None:
        try:
            for part in parts:
                length -= len(part)
                if length < 0:
                    break
                self._receive_into(part)
            if length:
                raise ProtocolError(f"the server at {self.address} has other lengths than it announced")
        except BaseException:  # what is still on its way belongs to nobody
            self.close()
            raise

    def _exchange(
        self,
        method: str,
        arguments: dict[str, object],
        bulk: Sequence[Buffer],
        reply_bytes_max: int,
        descriptors: list[int] | None = None,
    ) -> Any:
        """`descriptors`: gets the one that comes with the reply, if one does; without it none is taken."""
        sequence = next(self._sequence)
        message = encode_call(method, sequence, arguments)
        try:
            self._wire.send([frame(message), *bulk])
            if descriptors is None:
                header: bytes | bytearray = self._wire.receive(FRAME_HEADER_BYTES)
            else:
                header = self._wire.receive_with_descriptor(FRAME_HEADER_BYTES, descriptors)
            reply = self._wire.receive(frame_length(header, reply_bytes_max))
            return decode_reply(method, sequence, bytes(reply))
        except OSError as error:
            self.close()
            raise self._lost(error) from error
        except (ProtocolError, Unavailable):
            # A refusal of kind Unavailable may have come over a healthy connection; closing that one is
            # harmless.
            self.close()
            raise
        except DieselfsError:
            raise
        except BaseException:  # a reply may be half read
            self.close()
            raise

    def _receive_into(self, destination: memoryview) -> None:
        try:
            self._wire.receive_into(destination)
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> Unavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Unavailable(f"lost the server at {self.address}: {reason}")

    @property
    def is_open(self) -> bool:
        return self._wire.is_open

    @property
    def is_usable(self) -> bool:
        """False once closed, or when the server has closed its end (or sent what nobody asked for)."""
        return self._wire.is_idle

    def close(self) -> None:
        self._wire.close()
