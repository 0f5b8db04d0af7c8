"""The identity key of a store: all its servers sign with it, and show it to clients; and the certificate of a server,
from this identity or from files of an authority.

It is a record of the object store beside the users: anybody with read access to that record can pose as the servers.

A certificate from files is read again when they change; connections in use stay.
"""

import datetime
import hashlib
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.errors import Damaged, InvalidInput, Unavailable
from dieselfs.net.auth import PUBLIC_KEY_BYTES, pin_of
from dieselfs.net.private_file import file_version
from dieselfs.net.tls import ServerTls, load_pair, new_context
from dieselfs_server.store.interface import ObjectStore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

IDENTITY_RECORD = "identity"
NEXT_RECORD = "identity-next"
"""The identity that the servers will have. Key files that are made now accept both."""
SEED_BYTES = 32

_RECORD = re.compile(rb"dieselfs-identity 1 ([0-9a-f]{64}) ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class Identity:
    """`seed` is the private key; it is not shown when an identity is printed."""

    seed: bytes = field(repr=False)
    public_key: bytes

    @property
    def pin(self) -> bytes:
        return pin_of(self.public_key)

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)

    @classmethod
    def generate(cls) -> "Identity":
        # Only the first server of a store, and those that sign, load the package.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        seed = os.urandom(SEED_BYTES)
        return cls(seed, Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())

    def encode(self) -> bytes:
        return f"dieselfs-identity 1 {self.seed.hex()} {self.public_key.hex()}\n".encode()

    @classmethod
    def decode(cls, content: bytes) -> "Identity":
        """Raises Damaged."""
        match = _RECORD.fullmatch(content)
        if match is None:
            raise Damaged(
                f"the identity of the servers in the object store (record {IDENTITY_RECORD!r}) is invalid"
            )
        identity = cls(bytes.fromhex(match[1].decode()), bytes.fromhex(match[2].decode()))
        assert len(identity.public_key) == PUBLIC_KEY_BYTES
        return identity


def store_identity(store: ObjectStore) -> Identity:
    """The identity of the servers of this store; the first caller makes it. Raises Damaged, Unavailable."""
    content = store.get_record(IDENTITY_RECORD)
    if content is None:
        store.create_record(IDENTITY_RECORD, Identity.generate().encode())
        content = store.get_record(IDENTITY_RECORD)  # perhaps that of another server
    if content is None:
        raise Unavailable(
            f"object store: record {IDENTITY_RECORD!r} was removed at once; start the server again"
        )
    return Identity.decode(content)


def next_identity(store: ObjectStore) -> Identity | None:
    """Raises Damaged."""
    content = store.get_record(NEXT_RECORD)
    return None if content is None else Identity.decode(content)


def announce_identity(store: ObjectStore) -> Identity:
    """Make the next identity, unless there is one; servers show its pin to clients from now on."""
    store.create_record(NEXT_RECORD, Identity.generate().encode())
    announced = next_identity(store)
    if announced is None:
        raise Unavailable(f"object store: record {NEXT_RECORD!r} was removed at once; try again")
    return announced


CHANGES_LOOK_S = 1.0
"""How often the files are compared with what was read."""

_BEGIN, _END = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)
_SERIAL_BYTES = 16
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

log = logging.getLogger(__name__)


def identity_tls(identity: Identity) -> ServerTls:
    """TLS with a certificate for the identity: the same for all servers of the store, and without an end, because
    clients compare its key alone.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,  # by servers with TCP alone
    )

    key = Ed25519PrivateKey.from_private_bytes(identity.seed)
    return _made_tls(key, "dieselfs", 1, lambda builder: builder.sign(key, None))


def browser_tls(identity: Identity, names: Sequence[str]) -> ServerTls:
    """TLS for the web page without a certificate of an authority: with a key for P-256, as browsers know no Ed25519.

    Key and signature are derived from the identity, so a server has the same certificate after each start, and
    browsers warn of it once. With an OpenSSL before 3.2 the signature is random, and browsers warn after each start.
    `names`: of the server, or its addresses.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.x509 import SubjectAlternativeName

    derived = HKDF(hashes.SHA256(), 48, None, b"dieselfs web page, P-256").derive(identity.seed)
    key = ec.derive_private_key(1 + int.from_bytes(derived, "big") % (_P256_ORDER - 1), ec.SECP256R1())
    shown = names or ("localhost",)
    # Of the names: Firefox refuses two certificates of one issuer with the same number, without a way around.
    serial = int.from_bytes(hashlib.sha256("\n".join(shown).encode()).digest()[:_SERIAL_BYTES])

    def sign(builder: "CertificateBuilder") -> "Certificate":
        alternatives = SubjectAlternativeName([_general_name(each) for each in shown])
        builder = builder.add_extension(alternatives, critical=False)
        try:
            return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)
        except UnsupportedAlgorithm:
            return builder.sign(key, hashes.SHA256())

    return _made_tls(key, "dieselfs web page", serial + 1, sign)


def _made_tls(
    key: "Ed25519PrivateKey | EllipticCurvePrivateKey",
    common_name: str,
    serial: int,
    sign: "Callable[[CertificateBuilder], Certificate]",
) -> ServerTls:
    """TLS with a certificate for a key, which `sign` completes."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    certificate = sign(x509.CertificateBuilder(name, name, key.public_key(), serial, _BEGIN, _END))
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    context = new_context(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, pem, key.private_bytes(serialization.Encoding.PEM, form, encryption))
    return ServerTls(context, _first_fingerprint(pem))


def _general_name(name: str) -> "GeneralName":
    from cryptography.x509 import DNSName, IPAddress

    try:
        return IPAddress(ip_address(name))
    except ValueError:
        return DNSName(name)


class CertificateFiles:
    """TLS with a certificate from PEM files. Used from one thread."""

    def __init__(self, certificate: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidInput."""
        self._files = certificate, key
        self._clock = clock
        self._versions, self._looked_s = self._now(), clock()
        self._tls = self._read()

    def current(self) -> ServerTls:
        """Files that changed are read again after CHANGES_LOOK_S. While they do not fit, the last pair stays."""
        if self._clock() - self._looked_s >= CHANGES_LOOK_S:
            self._looked_s = self._clock()
            versions = self._now()
            if versions != self._versions:
                try:
                    self._tls = self._read()
                    log.info("certificate %s was read again", self._files[0])
                except InvalidInput as error:
                    log.warning("%s; the last certificate stays in use", error)
                self._versions = versions
        return self._tls

    def _now(self) -> list[tuple[int, ...]]:
        return [file_version(name) for name in self._files]

    def _read(self) -> ServerTls:
        certificate, key = self._files
        context = new_context(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificate, key)
            return ServerTls(context, _first_fingerprint(Path(certificate).read_bytes()))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidInput(f"TLS certificate {certificate}, key {key}: {reason}") from None


def _first_fingerprint(pem: bytes) -> bytes:
    """SHA-256 of the first certificate, which is that of the server. Raises ValueError."""
    text = pem.decode("ascii", "replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first, found, _ = text[text.find(begin) :].partition(end)
    if not found:
        raise ValueError("no certificate in the file")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first + end)).digest()
