"""Authentication: keys, challenge and response (`docs/reference/rpc.md`). This module opens key files.

Both sides prove that they know the user's key; an eavesdropper cannot compute it. As in SCRAM (RFC 5802), the server
keeps a verifier from which the key cannot be computed: a stolen user table gives no access. Keys are 32 random bytes,
so no slow hashing is needed.

    client_key = HMAC(secret, "client"), verifier = SHA-256(client_key), server_key = HMAC(secret, "server")
    transcript = label, role, channel, user, key ID, client nonce, server nonce (each with its length before it)
    client proof = client_key XOR HMAC(verifier, transcript), server proof = HMAC(server_key, transcript)

All servers of a store have the same Ed25519 key. Each key file has its pin, SHA-256 over the public key, encoded as in
certificates (RFC 8410); so a client knows its servers as SSH knows hosts.
"""

import hashlib
import hmac
import os
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field

from dieselfs.errors import AccessDenied, Damaged, InvalidInput
from dieselfs.net.private_file import read_private_file

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
KEY_FILE_BYTES_MAX = 1024
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
PIN_BYTES = 32

_ED25519_INFO = bytes.fromhex("302a300506032b6570032100")
"""DER of an Ed25519 SubjectPublicKeyInfo, up to the key."""

SERVER_ROLE, PEER_ROLE, PAGE_ROLE = "server", "peer", "page"
"""What the caller wants to talk to: a proof for a peer of a job, or for the web page, is worthless at a server."""
PLAIN_CHANNEL, LOCAL_CHANNEL = b"plain", b"local"
"""Channels without TLS: over TCP, and over a Unix socket."""

PROVIDER_MARK = "oidc:"
"""Before the names of users whom an identity provider names: none of them is a user that was made here. Alone, the user
in the `hello` of a caller who has a token in place of a key.
"""

_LABEL = b"dieselfs handshake 2"
_USER_NAME = re.compile(r"(?:oidc:)?[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_KEY_ID = re.compile(r"[a-z0-9]{1,32}")
_KEY_FILE = re.compile(
    r"dieselfs-key (\S{1,69}) ([a-z0-9]{1,32}) ([A-Za-z0-9_=-]{44}) ([A-Za-z0-9_=-]{44})"
    r"(?: ([A-Za-z0-9_=-]{44}))?\s*"
)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def _decoded(text: str) -> bytes:
    """Empty for anything but base64."""
    try:
        return urlsafe_b64decode(text)
    except ValueError:
        return b""


def check_user_name(name: str) -> str:
    """Return `name` if it is a valid user name, with PROVIDER_MARK or without; raise InvalidInput otherwise."""
    if not _USER_NAME.fullmatch(name):
        raise InvalidInput(
            f"user name {name[:70]!r} is not allowed: up to 64 letters, digits, '.', '_', '@', '-'"
        )
    return name


def check_local_name(name: str) -> str:
    """The same, for a user or group that is made here."""
    if name.startswith(PROVIDER_MARK):
        raise InvalidInput(
            f"{name[:70]!r} is a name of the identity provider: such users come by dlcmd login"
        )
    return check_user_name(name)


def parse_pin(text: str) -> bytes:
    """The pin in a key file, as people copy it. Raises InvalidInput."""
    pin = _decoded(text)
    if len(pin) != PIN_BYTES:
        raise InvalidInput(f"{text[:50]!r} is no pin: it is the last word of a key file")
    return pin


@dataclass(frozen=True, slots=True)
class Verifier:
    """The server's record of a key."""

    verifier: bytes
    server_key: bytes

    @classmethod
    def nobody(cls, salt: bytes, user: str, key_id: str) -> "Verifier":
        """A verifier that no key fits, for unknown users: they get the same replies in the same time."""
        return cls(*(_hmac(salt, f"{part} {user} {key_id}".encode()) for part in ("verifier", "server")))


def check_verifier(verifier: bytes, server_key: bytes) -> Verifier:
    """A verifier from another program. Raises InvalidInput."""
    if len(verifier) != PROOF_BYTES or len(server_key) != PROOF_BYTES:
        raise InvalidInput(f"a verifier and a server key have {PROOF_BYTES} bytes each")
    return Verifier(verifier, server_key)


def check_key_id(key_id: str) -> str:
    """Return `key_id` if it is a valid ID of a key; raise InvalidInput otherwise."""
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidInput(f"key ID {key_id[:40]!r} is not allowed: up to 32 small letters and digits")
    return key_id


@dataclass(frozen=True, slots=True)
class Key:
    """A user's key, and the pin of the servers that know it (`dieselfs/net/auth.py`). The secret is not shown when
    a key is printed or logged.
    """

    user: str
    key_id: str
    secret: bytes = field(repr=False)
    pin: bytes = bytes(PIN_BYTES)
    next_pin: bytes = b""
    """Of the identity that the servers will have next, or had before; empty without one."""

    @classmethod
    def generate(cls, user: str, pin: bytes = bytes(PIN_BYTES), next_pin: bytes = b"") -> "Key":
        secret = secrets.token_bytes(SECRET_BYTES)
        return cls(check_user_name(user), secrets.token_hex(4), secret, pin, next_pin)

    @property
    def pins(self) -> tuple[bytes, ...]:
        """The identities of servers that this key accepts."""
        return (self.pin, self.next_pin) if self.next_pin else (self.pin,)

    def verifier(self) -> Verifier:
        client_key = _hmac(self.secret, b"client")
        return Verifier(hashlib.sha256(client_key).digest(), _hmac(self.secret, b"server"))

    def text(self) -> str:
        """The content of a key file."""
        encoded = (urlsafe_b64encode(part).decode() for part in (self.secret, *self.pins))
        return f"dieselfs-key {self.user} {self.key_id} {' '.join(encoded)}\n"

    @classmethod
    def parse(cls, text: str, source: str) -> "Key":
        """Parse the content of a key file. Raises AccessDenied, which names `source` but not the content."""
        match = _KEY_FILE.fullmatch(text)
        secret, pin = (_decoded(match[3]), _decoded(match[4])) if match else (b"", b"")
        if match is None or len(secret) != SECRET_BYTES or len(pin) != PIN_BYTES:
            raise AccessDenied(
                f"{source} is not a key file: an administrator makes one with 'dlcmd user add NAME'"
            )
        next_pin = _decoded(match[5] or "")
        if match[5] and len(next_pin) != PIN_BYTES:
            raise AccessDenied(f"{source}: its second pin is invalid")
        return cls(check_user_name(match[1]), match[2], secret, pin, next_pin)


def read_key_file(path: str | os.PathLike[str]) -> Key:
    """Read a key. Raises AccessDenied if there is none, or if other users may read the file."""
    content = read_private_file(path, KEY_FILE_BYTES_MAX, "key file")
    return Key.parse(content.decode("ascii", "replace"), os.fspath(path))


def transcript(
    role: str, channel: bytes, user: str, key_id: str, client_nonce: bytes, server_nonce: bytes
) -> bytes:
    """The bytes that both proofs cover; the nonces make them different for each connection.

    `channel` is the fingerprint of the server's certificate as each end sees it, or a channel without TLS. So a proof
    that somebody passes on to another server, or from TLS to a plain connection, is wrong there.
    """
    parts = (_LABEL, role.encode(), channel, user.encode(), key_id.encode(), client_nonce, server_nonce)
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def client_proof(key: Key, transcript: bytes) -> bytes:
    return _xor(_hmac(key.secret, b"client"), _hmac(key.verifier().verifier, transcript))


def is_client_proof(verifier: Verifier, transcript: bytes, proof: bytes) -> bool:
    if len(proof) != PROOF_BYTES:
        return False
    client_key = _xor(proof, _hmac(verifier.verifier, transcript))
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.verifier)


def server_proof(verifier: Verifier, transcript: bytes) -> bytes:
    return _hmac(verifier.server_key, transcript)


def is_server_proof(key: Key, transcript: bytes, proof: bytes) -> bool:
    return hmac.compare_digest(server_proof(key.verifier(), transcript), proof)


def pin_of(public_key: bytes) -> bytes:
    """The pin of a public key, which has PUBLIC_KEY_BYTES."""
    return hashlib.sha256(_ED25519_INFO + public_key).digest()


def check_signature(pin: bytes, public_key: bytes, message: bytes, signature: bytes, what: str) -> None:
    """Raise AccessDenied, which begins with `what`, unless the owner of the key with this pin has signed `message`."""
    if len(public_key) != PUBLIC_KEY_BYTES or not hmac.compare_digest(pin_of(public_key), pin):
        raise AccessDenied(f"{what}: signed by another server than the one that your key file names")
    # Loading the package takes longer than many verbs of dlcmd.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        raise AccessDenied(f"{what}: the signature of the server is wrong") from None


def check_signed_by(public_key: bytes, message: bytes, signature: bytes, what: str) -> None:
    """As `check_signature`, for any key: the caller decides whether to trust it. Raises Damaged."""
    try:
        check_signature(pin_of(public_key), public_key, message, signature, what)
    except AccessDenied as error:
        raise Damaged(str(error)) from None
