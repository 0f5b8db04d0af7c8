"""The certificates of a server: from the identity of the store, or from files of an authority.

A certificate from files is read again when they change; connections in use stay.
"""

import datetime
import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import trio

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.net.private_file import file_version
from dieselfs.net.tls import ServerTls, load_pair, new_context
from dieselfs_server.access.identity import IDENTITY_REFRESH_S, Identity, LiveIdentity

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

CHANGES_LOOK_S = 1.0
"""How often the files are compared with what was read."""

_BEGIN, _END = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)
_SERIAL_BYTES = 16
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

log = logging.getLogger(__name__)


CERTIFIED_S = 7 * 86_400
"""Lifetime of the certificate of a key that the identity has certified: a thief of that key can use it until then."""
RENEWED_S = 86_400
"""It is renewed this often, and begins as long before, so that clocks of clients may be late."""


class MadeTls:
    """TLS with a certificate that `make` makes from the identity, again when that has changed, and each RENEWED_S."""

    def __init__(
        self,
        identity: LiveIdentity,
        make: Callable[[Identity], ServerTls],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity, self._make, self._clock = identity, make, clock
        self._renew()

    def _renew(self) -> None:
        self._made_for, self._made_s = self._identity.current, self._clock()
        self._tls = self._make(self._made_for)

    def current(self) -> ServerTls:
        return self._tls

    def refresh(self) -> None:
        """Blocks if the key is in a token. Raises Unavailable."""
        is_old = not self._made_for.seed and self._clock() - self._made_s >= RENEWED_S
        if is_old or self._made_for is not self._identity.current:
            self._renew()


def identity_tls(identity: Identity) -> ServerTls:
    """TLS with a certificate for the identity: the same for all servers of the store, and without an end, because
    clients compare its key alone. If the private key is in a token, which OpenSSL does not use for TLS, the certificate
    is for a new key in memory, signed by the identity.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,  # by servers with TCP alone
    )

    if not identity.seed:
        key = Ed25519PrivateKey.generate()
        return _made_tls(key, certificate_of(key, identity, time.time()))
    key = Ed25519PrivateKey.from_private_bytes(identity.seed)
    return _made_tls(key, _builder("dieselfs", key, 1).sign(key, None))


def certificate_of(key: "Ed25519PrivateKey", identity: Identity, now_s: float) -> "Certificate":
    """The certificate of a server's own key, signed by the identity. `tls.certifying_pin` checks it: the key identifier
    of the authority is the public key of the identity.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    begin = datetime.datetime.fromtimestamp(int(now_s - RENEWED_S), datetime.UTC)
    end = begin + datetime.timedelta(seconds=RENEWED_S + CERTIFIED_S)
    builder = _builder("dieselfs", key, x509.random_serial_number(), begin, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier(identity.public_key, None, None), critical=False
    )
    # The package signs with keys that it has: its signature, the last 64 bytes, gives way to that of the identity.
    made = builder.sign(key, None)
    signature = identity.sign(made.tbs_certificate_bytes)
    encoded = made.public_bytes(serialization.Encoding.DER)[: -len(signature)] + signature
    return x509.load_der_x509_certificate(encoded)


def browser_tls(identity: Identity, names: Sequence[str]) -> ServerTls:
    """TLS for the web page without a certificate of an authority: with a key for P-256, as browsers know no Ed25519.

    Key and signature are derived from the identity, so a server has the same certificate after each start, and
    browsers warn of it once. With an OpenSSL before 3.2 the signature is random, and with an identity in a token the
    key: then browsers warn after each start.
    `names`: of the server, or its addresses.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.x509 import SubjectAlternativeName

    if identity.seed:
        derived = HKDF(hashes.SHA256(), 48, None, b"dieselfs web page, P-256").derive(identity.seed)
        key = ec.derive_private_key(1 + int.from_bytes(derived, "big") % (_P256_ORDER - 1), ec.SECP256R1())
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    shown = names or ("localhost",)
    # Of the names: Firefox refuses two certificates of one issuer with the same number, without a way around.
    serial = int.from_bytes(hashlib.sha256("\n".join(shown).encode()).digest()[:_SERIAL_BYTES])

    alternatives = SubjectAlternativeName([_general_name(each) for each in shown])
    builder = _builder("dieselfs web page", key, serial + 1).add_extension(alternatives, critical=False)
    try:
        return _made_tls(key, builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True))
    except UnsupportedAlgorithm:
        return _made_tls(key, builder.sign(key, hashes.SHA256()))


def _builder(
    common_name: str,
    key: "Ed25519PrivateKey | EllipticCurvePrivateKey",
    serial: int,
    begin: datetime.datetime = _BEGIN,
    end: datetime.datetime = _END,
) -> "CertificateBuilder":
    from cryptography import x509

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    return x509.CertificateBuilder(name, name, key.public_key(), serial, begin, end)


def _made_tls(key: "Ed25519PrivateKey | EllipticCurvePrivateKey", certificate: "Certificate") -> ServerTls:
    from cryptography.hazmat.primitives import serialization

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
        self.certificate = certificate
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


class Certificates:
    """The certificates of a server for TCP and for browsers: from files, else made from the identity."""

    def __init__(self, identity: LiveIdentity, files: "CertificateFiles | None" = None) -> None:
        self._identity, self.files = identity, files
        self._made: dict[Callable[[Identity], ServerTls], MadeTls] = {}

    @property
    def file(self) -> str | None:
        """The file of the certificate, if it is from one."""
        return None if self.files is None else self.files.certificate

    def tls(self, make: Callable[[Identity], ServerTls]) -> Callable[[], ServerTls]:
        """The present certificate: that of the files, else one that `make` makes."""

        def current() -> ServerTls:
            return self.files.current() if self.files is not None else self._made[make].current()

        self._made[make] = MadeTls(self._identity, make)
        return current

    def refresh(self) -> None:
        """Read the identity again, and make what is made from it if that has changed. Blocks. Raises Unavailable."""
        self._identity.refresh()
        for each in self._made.values():
            each.refresh()

    async def keep_fresh(self) -> NoReturn:
        """Refresh until cancelled. An error is logged once."""
        reason = ""
        while True:
            await trio.sleep(IDENTITY_REFRESH_S)
            try:
                await trio.to_thread.run_sync(self.refresh, abandon_on_cancel=True)
                reason = ""
            except DieselfsError as error:
                if not reason:
                    log.warning("the identity of the servers cannot be read again yet: %s", error)
                reason = str(error)


def certificate_files(certificate: str | None, key: str | None) -> CertificateFiles | None:
    """Those of the settings, if they name any. Raises InvalidInput."""
    return CertificateFiles(certificate, key) if certificate is not None and key is not None else None
