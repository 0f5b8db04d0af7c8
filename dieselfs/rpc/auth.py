"""Authentication: keys, challenge and response (`docs/reference/rpc.md`). This module opens key files.

Both sides prove that they know the user's key; an eavesdropper cannot compute it. As in SCRAM (RFC 5802), the server
keeps a verifier from which the key cannot be computed: a stolen user table gives no access. Keys are 32 random bytes,
so no slow hashing is needed.

    client_key = HMAC(secret, "client"), verifier = SHA-256(client_key), server_key = HMAC(secret, "server")
    transcript = label, user, key ID, client nonce, server nonce (each with its length before it)
    client proof = client_key XOR HMAC(verifier, transcript), server proof = HMAC(server_key, transcript)
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path

from dieselfs.errors import AccessDenied, InvalidInput

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
KEY_FILE_BYTES_MAX = 1024

_LABEL = b"dieselfs handshake 1"
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_KEY_FILE = re.compile(r"dieselfs-key (\S{1,64}) ([a-z0-9]{1,32}) ([A-Za-z0-9_=-]{44})\s*")


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def check_user_name(name: str) -> str:
    """Return `name` if it is a valid user name; raise InvalidInput otherwise."""
    if not _USER_NAME.fullmatch(name):
        raise InvalidInput(
            f"user name {name[:70]!r} is not allowed: up to 64 letters, digits, '.', '_', '@', '-'"
        )
    return name


@dataclass(frozen=True, slots=True)
class Verifier:
    """The server's record of a key."""

    verifier: bytes
    server_key: bytes

    @classmethod
    def nobody(cls, salt: bytes, user: str, key_id: str) -> "Verifier":
        """A verifier that no key fits, for unknown users: they get the same replies in the same time."""
        return cls(*(_hmac(salt, f"{part} {user} {key_id}".encode()) for part in ("verifier", "server")))


@dataclass(frozen=True, slots=True)
class Key:
    """A user's key. The secret is not shown when a key is printed or logged."""

    user: str
    key_id: str
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls, user: str) -> "Key":
        return cls(check_user_name(user), secrets.token_hex(4), secrets.token_bytes(SECRET_BYTES))

    def verifier(self) -> Verifier:
        client_key = _hmac(self.secret, b"client")
        return Verifier(hashlib.sha256(client_key).digest(), _hmac(self.secret, b"server"))

    def text(self) -> str:
        """The content of a key file."""
        return f"dieselfs-key {self.user} {self.key_id} {urlsafe_b64encode(self.secret).decode()}\n"

    @classmethod
    def parse(cls, text: str, source: str) -> "Key":
        """Parse the content of a key file. Raises AccessDenied, which names `source` but not the content."""
        match = _KEY_FILE.fullmatch(text)
        secret = urlsafe_b64decode(match[3]) if match else b""
        if match is None or len(secret) != SECRET_BYTES:
            raise AccessDenied(
                f"{source} is not a key file: an administrator makes one with 'dlcmd user add NAME'"
            )
        return cls(check_user_name(match[1]), match[2], secret)


def read_key_file(path: str | os.PathLike[str]) -> Key:
    """Read a key. Raises AccessDenied if there is none, or if other users may read the file."""
    source = Path(path).expanduser()
    try:
        with source.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise AccessDenied(f"key file {source} can be read by others: chmod 600 {source}")
            content = file.read(KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise AccessDenied(f"key file {source}: {error.strerror}") from None
    return Key.parse(content.decode("ascii", "replace"), f"{source}")


def transcript(user: str, key_id: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """The bytes that both proofs cover; the nonces make them different for each connection."""
    parts = (_LABEL, user.encode(), key_id.encode(), client_nonce, server_nonce)
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
