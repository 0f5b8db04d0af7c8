"""TLS 1.3 in memory, and over a blocking socket. This module waits for sockets.

OpenSSL encrypts into memory and decrypts from memory, so one call to the kernel moves many records: with its own calls,
which move one record of 16 KiB each, whole chunks take a third longer.

`ClientTls` checks the identity of the other end after the handshake: by the pin of the server's key, by an authority,
or by the fingerprint of one certificate.
"""

import hashlib
import hmac
import os
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import local

from dieselfs.errors import Unavailable
from dieselfs.limits import KIB
from dieselfs.net.address import TcpAddress
from dieselfs.net.auth import pin_of

Buffer = bytes | bytearray | memoryview

STEP_BYTES = 64 * KIB
"""Bytes that are encrypted or decrypted at once. They stay in the processor's cache, and each connection keeps buffers
of this size: a node has some thousands. Larger steps are no faster.
"""
STEPS = 4
"""Steps that one call to the kernel sends or receives: their buffers belong to no connection."""

_SHAKE_BYTES = 16 * KIB
_RECORD_BYTES = 16 * KIB + 256 + 5
"""The largest record of TLS 1.3."""
_scratch = local()


def scratch() -> memoryview:
    """Memory of this thread for STEPS, for received bytes that are passed on at once."""
    try:
        view: memoryview = _scratch.view
    except AttributeError:
        view = _scratch.view = memoryview(bytearray(STEPS * STEP_BYTES))
    return view


def fingerprint(certificate: bytes) -> bytes:
    """SHA-256 of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The end of a server: `channel` is the fingerprint of its certificate, which proofs of users cover."""

    context: ssl.SSLContext
    channel: bytes


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client checks the server: the public key has one of the pins, or a key with such a pin has certified it, or
    the certificate has the fingerprint; with neither, an authority in `context` has been asked.
    """

    context: ssl.SSLContext
    pins: Sequence[bytes] = ()
    fingerprint: bytes | None = None

    def check(self, certificate: bytes, address: TcpAddress) -> None:
        """Raises Unavailable, as another server may be the right one."""
        if self.fingerprint is not None and not hmac.compare_digest(
            fingerprint(certificate), self.fingerprint
        ):
            raise Unavailable(f"{address} shows another certificate than its record: it is another process")
        if self.pins and not (
            self._is_pinned(pin_of_certificate(certificate)) or self._is_pinned(certifying_pin(certificate))
        ):
            raise Unavailable(
                f"the server at {address} has another key than the one in your key file: it is not the real one; "
                "check the address (set tls_ca if an authority has made its certificate)"
            )

    def _is_pinned(self, pin: bytes) -> bool:
        return any(hmac.compare_digest(pin, known) for known in self.pins)


def new_context(side: int) -> ssl.SSLContext:
    """A context of TLS 1.3 for `ssl.PROTOCOL_TLS_CLIENT` or `ssl.PROTOCOL_TLS_SERVER`, without any trust."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # sessions are not resumed
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # `ClientTls.check` decides
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Give a context a certificate and its key, both PEM. The key is in no file system."""
    descriptor = os.memfd_create("dieselfs-key", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class TlsEngine:
    """One end of a connection, without I/O. Methods raise ssl.SSLError; the engine is unusable then."""

    def __init__(self, context: ssl.SSLContext, is_server: bool, host: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, is_server, host)

    def shake(self) -> bool:
        """Continue the handshake; True when it is done. `take` has bytes to send, also after an error."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    @property
    def certificate(self) -> bytes:
        """The certificate of the other end, after the handshake; empty if it has none."""
        return self._object.getpeercert(binary_form=True) or b""

    def feed(self, received: Buffer) -> None:
        """Take bytes from the other end."""
        self._incoming.write(received)

    def take(self) -> bytes:
        """The bytes for the other end."""
        return self._outgoing.read()

    def encrypt(self, plain: Buffer) -> None:
        rest = memoryview(plain)
        while rest:
            rest = rest[self._object.write(rest) :]

    def decrypt_into(self, destination: memoryview) -> int:
        """Decrypt what has arrived, up to the length of `destination`; returns the bytes, 0 if there are none yet.

        Raises ConnectionError if the other end has closed.
        """
        filled = 0
        try:
            while filled < len(destination):
                length = int(self._object.read(len(destination) - filled, destination[filled:]))
                if not length:
                    break
                filled += length
        except ssl.SSLWantReadError:
            return filled
        except ssl.SSLZeroReturnError:
            pass
        if not filled:
            raise ConnectionError("it closed the connection")
        return filled

    def decrypt_all(self, received: memoryview, destination: memoryview) -> int:
        """Take bytes from the other end, and decrypt what has arrived into `destination`; returns as `decrypt_into`."""
        filled = 0
        for start in range(0, len(received), STEP_BYTES):
            self.feed(received[start : start + STEP_BYTES])
            if filled < len(destination):
                try:
                    filled += self.decrypt_into(destination[filled:])
                except ConnectionError:
                    if not filled:
                        raise
        return filled

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have arrived and are not decrypted, or not taken."""
        return int(self._incoming.pending) + self._object.pending()


class TlsSocket:
    """A blocking socket with the methods that `Wire` uses; each moves at most some records."""

    def __init__(self, sock: socket.socket, engine: TlsEngine) -> None:
        self._socket = sock
        self._engine = engine
        self._unsent = memoryview(b"")
        self._accepted = 0  # plain bytes in `_unsent`
        self.family = sock.family
        self.channel = fingerprint(engine.certificate)
        """What proofs of users cover: the certificate of the other end."""
        self.fileno = sock.fileno
        self.close = sock.close
        self.settimeout = sock.settimeout
        self.setsockopt = sock.setsockopt

    def send(self, plain: memoryview) -> int:
        """Send a part; returns the bytes of `plain` that are on their way, 0 if more of the same must be sent first.
        After an error of the socket, the call is repeated with the same bytes.
        """
        if not self._unsent:
            self._accepted = min(len(plain), STEP_BYTES)
            self._engine.encrypt(plain[: self._accepted])
            self._unsent = memoryview(self._engine.take())
        self._unsent = self._unsent[self._socket.send(self._unsent) :]
        return 0 if self._unsent else self._accepted

    def recv_into(self, destination: memoryview, length: int = 0, flags: int = 0) -> int:
        """As `socket.recv_into`. With MSG_WAITALL it may return fewer bytes, which are at least the next record."""
        engine, view = self._engine, scratch()
        waiting_bytes = engine.waiting_bytes
        filled = engine.decrypt_into(destination) if waiting_bytes else 0
        while not filled:
            size_bytes = STEP_BYTES
            if flags:
                # No less than this must come; OpenSSL may hold a part of a record that it does not count.
                missing_bytes = len(destination) - waiting_bytes - _RECORD_BYTES
                size_bytes = min(max(missing_bytes, 1), len(view))
            received = self._socket.recv_into(view, size_bytes, flags)
            if not received:
                return 0
            filled = engine.decrypt_all(view[:received], destination)
            waiting_bytes = engine.waiting_bytes
        return filled

    def recv(self, length: int, flags: int) -> bytes:
        """As `socket.recv`, for a look at an idle connection: `flags` is MSG_DONTWAIT. Records without data are dealt
        with.
        """
        engine, plain, view = self._engine, memoryview(bytearray(length)), scratch()
        filled = engine.decrypt_into(plain) if engine.waiting_bytes else 0
        while not filled:
            received = self._socket.recv_into(view, STEP_BYTES, flags)
            if not received:
                break
            engine.feed(view[:received])
            filled = engine.decrypt_into(plain)
        return bytes(plain[:filled])


def secured(sock: socket.socket, address: TcpAddress, tls: ClientTls, timeout_s: float) -> TlsSocket:
    """Shake hands over a connected socket, within `timeout_s`, and check the server. Raises OSError, Unavailable; then
    the caller closes the socket.
    """
    engine = TlsEngine(tls.context, False, address.host)
    end_s = time.monotonic() + timeout_s
    while True:
        is_done = engine.shake()
        _set_time_left(sock, end_s)
        sock.sendall(engine.take())
        if is_done:
            break
        _set_time_left(sock, end_s)
        received = sock.recv(_SHAKE_BYTES)
        if not received:
            raise ConnectionResetError("it closed the connection in the TLS handshake")
        engine.feed(received)
    tls.check(engine.certificate, address)
    return TlsSocket(sock, engine)


def _set_time_left(sock: socket.socket, end_s: float) -> None:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    sock.settimeout(left_s)


def pin_of_certificate(certificate: bytes) -> bytes:
    """SHA-256 of the public key in a certificate (its SubjectPublicKeyInfo); empty for malformed bytes.

    Parsed here, as loading a package for it takes longer than most verbs of dlcmd.
    """
    try:
        _, body, _ = _element(certificate, 0)  # Certificate
        _, place, _ = _element(certificate, body)  # TBSCertificate
        tag, _, end = _element(certificate, place)
        place = end if tag == _VERSION else place
        for _ in ("serial number", "signature", "issuer", "validity", "subject"):
            _, _, place = _element(certificate, place)
        _, _, end = _element(certificate, place)
    except IndexError:
        return b""
    return hashlib.sha256(certificate[place:end]).digest()


def certifying_pin(certificate: bytes, now_s: float | None = None) -> bytes:
    """The pin of the identity of servers that has certified a server's own key; empty if none has, or not for `now_s`.

    The identifier of the authority's key is its public key (Ed25519).
    """
    # By clients of servers with their identity in a token alone.
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    malformed = ValueError, x509.InvalidVersion, x509.DuplicateExtension, UnsupportedAlgorithm
    try:
        found = x509.load_der_x509_certificate(certificate)
        signer = (
            found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier or b""
        )
        Ed25519PublicKey.from_public_bytes(signer).verify(found.signature, found.tbs_certificate_bytes)
    except (*malformed, x509.ExtensionNotFound, InvalidSignature):
        return b""
    # Not covered by the signature: its algorithm, and how many bits of its last byte count.
    is_whole = certificate.endswith(b"\0" + found.signature)
    if found.signature_algorithm_oid != x509.SignatureAlgorithmOID.ED25519 or not is_whole:
        return b""
    begin, end = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return pin_of(signer) if begin <= (time.time() if now_s is None else now_s) <= end else b""


_VERSION = 0xA0


def _element(content: bytes, place: int) -> tuple[int, int, int]:
    """`(tag, start of the content, end)` of the DER element at `place`. Raises IndexError if it does not fit."""
    tag, length, start = content[place], content[place + 1], place + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(content[start : start + size], "big")
        start += size
    if start + length > len(content):
        raise IndexError
    return tag, start, start + length
