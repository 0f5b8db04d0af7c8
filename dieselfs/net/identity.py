"""The identity of the servers of one store: an Ed25519 key. No I/O.

All servers of a store have the same key. Each key file has its pin; so a client knows its servers as SSH knows hosts.
The pin is SHA-256 over the public key, encoded as in certificates (RFC 8410).
"""

import hashlib
import hmac

from dieselfs.errors import AccessDenied

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
PIN_BYTES = 32

_ED25519_INFO = bytes.fromhex("302a300506032b6570032100")
"""DER of an Ed25519 SubjectPublicKeyInfo, up to the key."""


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
