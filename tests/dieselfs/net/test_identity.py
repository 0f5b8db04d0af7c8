"""Pins and signatures; tests/server/access/test_identity.py signs."""

import hashlib

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dieselfs.errors import AccessDenied
from dieselfs.net.identity import check_signature, pin_of


def test_a_pin_is_the_hash_of_the_key_as_in_certificates() -> None:
    public = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    assert pin_of(public.public_bytes_raw()) == hashlib.sha256(public.public_bytes(encoding, form)).digest()


@pytest.mark.parametrize("public_key", [b"", bytes(31), bytes(32)])
def test_an_impossible_key_is_refused(public_key: bytes) -> None:
    with pytest.raises(AccessDenied):
        check_signature(bytes(32), public_key, b"message", bytes(64), "tag")
