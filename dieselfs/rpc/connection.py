"""One connection to a server, for one thread at a time. This module opens sockets and reads files.

Blocking sockets with timeouts, not trio: the library runs in training programs and DataLoader workers without an event
loop. Daemons use the same connections in worker threads.
"""

import logging
import math
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import (
    CONNECT_TIMEOUT_S,
    FRAME_BYTES_MAX,
    HANDSHAKE_FRAME_BYTES_MAX,
    LEAST_RATE_BYTES_PER_S,
    MIB,
    REQUEST_TIMEOUT_S,
)
from dieselfs.net import auth
from dieselfs.net.address import Address, TcpAddress, UnixAddress
from dieselfs.net.sockets import is_believed, open_socket, peer_user
from dieselfs.rpc.messages import (
    FRAME_HEADER_BYTES,
    KEEP_ALIVE,
    PROGRESS,
    PROGRESS_BYTES,
    PROTOCOL_VERSION,
    connection_name,
    decode_progress,
    decode_reply,
    encode_call,
    frame,
    frame_length,
)
from dieselfs.rpc.records import CopyProgress
from dieselfs.rpc.wire import Buffer, Wire

if TYPE_CHECKING:  # imported for TCP alone
    from dieselfs.net.tls import ClientTls, TlsSocket


def connected(
    address: Address, tls: "ClientTls | None", timeout_s: float = CONNECT_TIMEOUT_S
) -> "socket.socket | TlsSocket":
    """Connect, over TCP with these terms of TLS, within `timeout_s` for each. Raises Unavailable with the cause."""
    sock = open_socket(address, timeout_s)
    if tls is None or not isinstance(address, TcpAddress):
        return sock
    import ssl

    from dieselfs.net.tls import secured

    try:
        return secured(sock, address, tls, timeout_s)
    except BaseException as error:
        sock.close()
        if not isinstance(error, OSError):
            raise
        reason = _reason(error)
        if not isinstance(error, ssl.SSLCertVerificationError | TimeoutError):
            reason += "; tls must be off at both ends or at neither"
        raise Unavailable(f"cannot reach the server at {address}: {reason}") from error


def check_answer(address: Address, tls: "ClientTls | None", timeout_s: float) -> None:
    """Raise Unavailable unless a server there answers the first call of a handshake. Each of connecting, TLS and the
    answer gets `timeout_s`. Nobody logs in.
    """
    wire = Wire(connected(address, tls, timeout_s))
    try:
        wire.limit(timeout_s, timeout_s)
        wire.send([frame(encode_call("hello", 1, _hello("", "", os.urandom(auth.NONCE_BYTES))))])
        wire.receive(FRAME_HEADER_BYTES)
    except OSError as error:
        raise Unavailable(f"cannot reach the server at {address}: {_reason(error)}") from error
    finally:
        wire.close()


def _hello(user: str, key_id: str, nonce: bytes) -> dict[str, object]:
    return {"protocol_version": PROTOCOL_VERSION, "user": user, "key_id": key_id, "client_nonce": nonce}


def _reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)


GROWTH_BYTES = 64 * MIB
"""Memory that a client takes for announced bytes before they arrive."""

_log = logging.getLogger(__name__)


class Connection(Wire):
    """A connection after the handshake. Any error except a refusal closes it for good; `is_idle` says whether it can
    take a call.
    """

    def __init__(
        self,
        sock: "socket.socket | TlsSocket",
        address: Address,
        key: auth.Key | None,
        timeout_s: float = CONNECT_TIMEOUT_S,
        total_s: float = math.inf,
        role: str = auth.SERVER_ROLE,
        token: str = "",
    ) -> None:
        """Take over `sock` (see `connected`) and authenticate. `timeout_s` bounds each wait for bytes to move,
        `total_s` all of them. `role`: see `auth.transcript`. `token`: of an identity provider; the server exchanges it
        for the key, which is new. The caller has checked the server.

        Raises AccessDenied, ProtocolError or Unavailable; then it is closed.
        """
        super().__init__(sock)
        self.address = address
        self.key = key
        self._sequence = count(1)
        self._name = self._request = ""  # the server's log has the same names
        self._asked: int | None = None  # the call that was sent, whose reply `call` receives
        self.welcome: Any = None
        """The last reply of the handshake, which names the user of a token."""
        self.gives_files = False
        """Whether the server may pass descriptors of files: same machine, same user, and no reply has denied it."""
        self.is_of_own_user = False
        """Whether the server is a process of this user or of root on this machine, which may share memory."""
        try:
            self.limit(timeout_s, min(total_s, 2 * timeout_s))
            self._shake_hands(key, role, sock, token)
        except BaseException as error:
            self.close()
            is_plain = isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX
            if is_plain and isinstance(error.__cause__, ConnectionError):
                raise Unavailable(f"{error}; tls must be off at both ends or at neither") from error
            raise

    def _shake_hands(
        self, key: auth.Key | None, role: str, sock: "socket.socket | TlsSocket", token: str
    ) -> None:
        is_local = sock.family == socket.AF_UNIX
        if key is None:
            self._check_owner(sock)
        nonce = os.urandom(auth.NONCE_BYTES)
        self._name = connection_name(nonce)
        user, key_id = (key.user, key.key_id) if key else ("", "")
        user = auth.PROVIDER_MARK if token else user
        challenge = self._exchange("hello", _hello(user, key_id, nonce), (), HANDSHAKE_FRAME_BYTES_MAX)
        if key is None:
            if challenge.is_trusted:
                self.gives_files = True
                if isinstance(sock, socket.socket):
                    self.is_of_own_user = peer_user(sock) in (os.geteuid(), 0)
                return
            raise self._without_key()
        if token:
            known = key.verifier()
            named = {"token": token.encode(), "verifier": known.verifier, "server_key": known.server_key}
            self.welcome = self._exchange("prove", {"proof": b"", **named}, (), HANDSHAKE_FRAME_BYTES_MAX)
            return
        if not isinstance(sock, socket.socket):
            channel = sock.channel
        else:
            channel = auth.LOCAL_CHANNEL if is_local else auth.PLAIN_CHANNEL
        transcript = auth.transcript(role, channel, user, key_id, nonce, challenge.server_nonce)
        proof = auth.client_proof(key, transcript)
        welcome = self._exchange("prove", {"proof": proof}, (), HANDSHAKE_FRAME_BYTES_MAX)
        if not auth.is_server_proof(key, transcript, welcome.proof):
            raise AccessDenied(
                f"the server at {self.address} does not know the key of {user!r}: it is not the real one; "
                "check the address"
            )

    def _check_owner(self, sock: "socket.socket | TlsSocket") -> None:
        """Without a key, the server proves nothing. Raises AccessDenied unless its process may be believed."""
        if not isinstance(self.address, UnixAddress) or not isinstance(sock, socket.socket):
            raise self._without_key()
        user = peer_user(sock)
        if not is_believed(user, self.address.path):
            raise AccessDenied(
                f"the server at {self.address} belongs to user ID {user}, not to you: use a key (--key-file), "
                "or the address of a server of yours"
            )

    def _without_key(self) -> AccessDenied:
        return AccessDenied(
            f"the server at {self.address} requires a key: set --key-file, DIESELFS_KEY_FILE "
            "or the configuration file"
        )

    def ask(
        self, method: str, arguments: dict[str, object], timeout_s: float, total_s: float = math.inf
    ) -> None:
        """Send a call, whose reply the next `call` receives; it must be of the same method, and sends nothing. Raises
        Unavailable.
        """
        self.limit(timeout_s, min(total_s, 2 * timeout_s))
        try:
            self._asked = self._send_call(method, arguments, ())
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise self._lost(error) from error
            raise

    @property
    def is_asked(self) -> bool:
        """Whether a call was sent that has no reply."""
        return self._asked is not None

    def gave_up(self) -> Unavailable:
        """Close it, because no reply comes; the error."""
        self.close()
        return self._lost(TimeoutError())

    def call(
        self,
        method: str,
        arguments: dict[str, object],
        bulk: Sequence[Buffer] = (),
        timeout_s: float = REQUEST_TIMEOUT_S,
        destination: Callable[[Any], Iterator[memoryview]] | None = None,
        total_s: float = math.inf,
        work_s: float = 0.0,
        bulk_bytes_max: int = 0,
        progressed: Callable[[CopyProgress], object] | None = None,
    ) -> tuple[Any, bytearray | None]:
        """Call `method`, sending `bulk` behind it. Returns the reply, and the bulk bytes that follow it, if any.

        More than `bulk_bytes_max` are an error, and memory is taken as they arrive.
        With a `destination`, the bulk bytes go there instead. It gets the reply and yields buffers; each one is full
        when the next is requested. It raises ProtocolError for an impossible reply.
        `timeout_s` bounds each wait for bytes to move, `total_s` all waits together. Without it, the reply has to come
        within `2 * timeout_s + work_s`, and bulk bytes at LEAST_RATE_BYTES_PER_S. `work_s`: the time for which a server
        that keeps the connection alive may work on the call. `progressed` is called with the progress that it sends.
        Raises the server's refusal (the connection stays open), or ProtocolError, Unavailable, or an error of
        `destination` or `progressed` (it is closed).
        """
        sending_s = sum(map(len, bulk)) / LEAST_RATE_BYTES_PER_S
        self.limit(timeout_s, min(total_s, 2 * timeout_s + work_s + sending_s))
        reply = self._exchange(method, arguments, bulk, FRAME_BYTES_MAX, progressed=progressed)
        length = getattr(reply, "bulk_length", None) or 0
        if length < 0 or (destination is None and length > bulk_bytes_max):
            self.close()
            raise ProtocolError(
                f"the server at {self.address} announces {length} bytes behind its reply to {method!r}, "
                f"limit {bulk_bytes_max}"
            )
        if total_s == math.inf:
            self.limit(timeout_s, timeout_s + length / LEAST_RATE_BYTES_PER_S)
        if destination is not None:
            self._receive_parts(destination(reply), length)
            return reply, None
        if not length:
            return reply, None
        received = bytearray()
        self._receive_parts(_growing(received, length), length)
        return reply, received

    def call_for_files(
        self, method: str, arguments: dict[str, object], timeout_s: float, descriptors_max: int = 1
    ) -> tuple[Any, list[int]]:
        """Call `method` on a Unix socket. Returns the reply, and the descriptors that came with it, which the caller
        closes; fewer than were sent if this process has none left. Raises as `call`; then there are none.
        """
        self.limit(timeout_s, 2 * timeout_s)
        descriptors: list[int] = []
        try:
            reply = self._exchange(method, arguments, (), FRAME_BYTES_MAX, descriptors, descriptors_max)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return reply, descriptors

    def _receive_parts(self, parts: Iterator[memoryview], length: int) -> None:
        try:
            for part in parts:
                length -= len(part)
                if length < 0:
                    break
                self._receive_into(part)
            if length:
                raise ProtocolError(f"the server at {self.address} announced another length than requested")
        except BaseException:  # bytes in flight belong to no later call
            self.close()
            raise

    def _exchange(
        self,
        method: str,
        arguments: dict[str, object],
        bulk: Sequence[Buffer],
        reply_bytes_max: int,
        descriptors: list[int] | None = None,
        descriptors_max: int = 0,
        progressed: Callable[[CopyProgress], object] | None = None,
    ) -> Any:
        """Descriptors that come with the reply are added to `descriptors`; None: none is received."""
        sequence, self._asked = self._asked, None
        try:
            if sequence is None:
                sequence = self._send_call(method, arguments, bulk)
            if descriptors is None:
                header: bytes | bytearray = self.receive(FRAME_HEADER_BYTES)
            else:
                header = self.receive_with_descriptors(FRAME_HEADER_BYTES, descriptors, descriptors_max)
            while header == KEEP_ALIVE or (progressed is not None and header == PROGRESS):
                if progressed is not None and header == PROGRESS:
                    progressed(decode_progress(self.receive(PROGRESS_BYTES)))
                header = self.receive(FRAME_HEADER_BYTES)
            self.hurry()  # signs of life prolong the work, not the reply
            reply = self.receive(frame_length(header, reply_bytes_max))
            return decode_reply(method, sequence, bytes(reply))
        except OSError as error:
            self.close()
            raise self._lost(error) from error
        except (ProtocolError, Unavailable):
            # A refusal with Unavailable leaves the connection healthy; closing it is harmless.
            self.close()
            raise
        except DieselfsError:
            raise
        except BaseException:  # a reply may be half read
            self.close()
            raise

    def _send_call(self, method: str, arguments: dict[str, object], bulk: Sequence[Buffer]) -> int:
        sequence = next(self._sequence)
        self._request = f"{self._name}-{sequence}"
        _log.debug("%s: request %s to %s", method, self._request, self.address)
        self.send([frame(encode_call(method, sequence, arguments)), *bulk])
        return sequence

    def _receive_into(self, destination: memoryview) -> None:
        try:
            self.receive_into(destination)
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> Unavailable:
        return Unavailable(f"lost the server at {self.address}: {_reason(error)} (request {self._request})")


def first_to_answer(connections: Sequence[Wire | socket.socket], timeout_s: float) -> int | None:
    """Wait for the first reply to begin, or connection to fail; its place, None without any within `timeout_s`."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(max(timeout_s, 0.0) * 1000)}
    places = (place for place, connection in enumerate(connections) if connection.fileno() in ready)
    return next(places, None)


def _growing(received: bytearray, length: int) -> Iterator[memoryview]:
    """The parts of `received`, which grows to `length` as they are filled."""
    while left := length - len(received):
        start = len(received)
        received.extend(bytes(min(left, GROWTH_BYTES)))
        part = memoryview(received)[start:]
        yield part
        part.release()  # else it could not grow
