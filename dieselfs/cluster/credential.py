"""What a process of a job shows to nodes of the job, and how it checks them: certificates. This module makes keys and
contexts of TLS.

The job's secret gives an authority, the same in all processes that know it; each process makes a key and has it
certified there. So only processes of the job get through the TLS handshake, in both directions. The record of a member
has the fingerprint of its certificate: so another process of the job at its address is noticed too.

    job secret -> key of the authority -> certificate of each process -> fingerprint, in the member's sealed record
"""

import datetime
import os
import ssl
from dataclasses import dataclass, field

from dieselfs.cluster.member import FINGERPRINT_BYTES, Member
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import Unavailable
from dieselfs.net.auth import Key
from dieselfs.net.tls import ClientTls, ServerTls, fingerprint, load_pair, new_context

PLAIN = bytes(FINGERPRINT_BYTES)
"""The fingerprint of a member without TLS."""

_BEGIN, _END = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)
"""Certificates live as long as the process that has the key; the member's record has an expiry."""
_AUTHORITY = "dieselfs job"


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate in PEM and DER, its key in PEM, and the certificate of the authority in PEM."""

    pem: bytes
    der: bytes
    key: bytes = field(repr=False)
    authority: str


def _certified(secret: bytes) -> _Pair:
    """A new key, certified by the authority whose key is `secret`. The authority's certificate is always the same."""
    from cryptography import x509  # loaded by processes of jobs alone
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    encoding = serialization.Encoding
    signer, key = Ed25519PrivateKey.from_private_bytes(secret), Ed25519PrivateKey.generate()
    issuer = named(_AUTHORITY)
    authority = (
        x509.CertificateBuilder(issuer, issuer, signer.public_key(), 1, _BEGIN, _END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(signer, None)
    )
    serial = int.from_bytes(os.urandom(16), "big") >> 1
    own = (
        x509.CertificateBuilder(issuer, named("dieselfs member"), key.public_key(), serial, _BEGIN, _END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(signer, None)
    )
    return _Pair(
        own.public_bytes(encoding.PEM),
        own.public_bytes(encoding.DER),
        key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        authority.public_bytes(encoding.PEM).decode(),
    )


class JobCredential:
    """The identity of one process, for its lifetime; made at the first use. A forked child shares that of its parent.

    Thread-safe without a lock, which a fork could leave locked: if two threads make a certificate at the same time,
    both are valid, and the fingerprint is read by one thread alone.
    """

    def __init__(self, secret: JobSecret, has_tls: bool = True) -> None:
        """`has_tls` False: the setting `tls` is off."""
        self._secret = secret
        self.has_tls = has_tls
        self.key: Key = secret.peer_key()
        """The key of the handshake inside TLS."""
        self._made: _Pair | None = None
        self._contexts: dict[int, ssl.SSLContext] = {}

    @property
    def _pair(self) -> _Pair:
        made = self._made
        if made is None:
            made = self._made = _certified(self._secret.authority_key())
        return made

    @property
    def fingerprint(self) -> bytes:
        """For the own record; PLAIN without TLS."""
        return fingerprint(self._pair.der) if self.has_tls else PLAIN

    def _context(self, side: int) -> ssl.SSLContext:
        context = self._contexts.get(side)
        if context is None:
            context = new_context(side)
            pair = self._pair
            load_pair(context, pair.pem, pair.key)
            context.load_verify_locations(cadata=pair.authority)
            context.verify_mode = ssl.CERT_REQUIRED
            self._contexts[side] = context
        return context

    def server_tls(self) -> ServerTls:
        """For a listener: only processes of the job get in."""
        return ServerTls(self._context(ssl.PROTOCOL_TLS_SERVER), self.fingerprint)

    def client_tls(self, member: Member) -> ClientTls | None:
        """For a connection to a member; None without TLS. Raises Unavailable if TLS is off at one end only."""
        if self.has_tls != (member.fingerprint != PLAIN):
            there, here = ("off", "on") if self.has_tls else ("on", "off")
            raise Unavailable(
                f"node {member.node} has tls {there}, this one has it {here}: set it alike for all nodes"
            )
        if not self.has_tls:
            return None
        return ClientTls(self._context(ssl.PROTOCOL_TLS_CLIENT), fingerprint=member.fingerprint)
