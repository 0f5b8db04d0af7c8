"""Both sides prove that they know the key; nothing else passes."""

import hashlib
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.net.auth import (
    LOCAL_CHANNEL,
    PEER_ROLE,
    PLAIN_CHANNEL,
    SERVER_ROLE,
    Key,
    Verifier,
    check_signature,
    client_proof,
    is_client_proof,
    is_server_proof,
    pin_of,
    read_key_file,
    server_proof,
    transcript,
)

KEY = Key("ada", "k1", bytes(range(32)))
CHANNEL = b"e" * 32
SAID = transcript(SERVER_ROLE, CHANNEL, "ada", "k1", b"c" * 32, b"s" * 32)


def test_the_right_key_passes_on_both_sides() -> None:
    verifier = KEY.verifier()
    assert is_client_proof(verifier, SAID, client_proof(KEY, SAID))
    assert is_server_proof(KEY, SAID, server_proof(verifier, SAID))


@pytest.mark.parametrize("proof", [b"", bytes(32), b"x" * 32, b"x" * 33])
def test_another_proof_fails(proof: bytes) -> None:
    assert not is_client_proof(KEY.verifier(), SAID, proof)
    assert not is_server_proof(KEY, SAID, proof)


def test_a_proof_is_of_no_use_in_another_conversation() -> None:
    for other in (
        transcript(SERVER_ROLE, CHANNEL, "ada", "k1", b"c" * 32, b"t" * 32),
        transcript(SERVER_ROLE, CHANNEL, "ada", "k2", b"c" * 32, b"s" * 32),
        transcript(SERVER_ROLE, CHANNEL, "adak", "1", b"c" * 32, b"s" * 32),  # the same bytes, cut elsewhere
        transcript(PEER_ROLE, CHANNEL, "ada", "k1", b"c" * 32, b"s" * 32),
        transcript(SERVER_ROLE, b"f" * 32, "ada", "k1", b"c" * 32, b"s" * 32),  # another certificate
        transcript(SERVER_ROLE, PLAIN_CHANNEL, "ada", "k1", b"c" * 32, b"s" * 32),
        transcript(SERVER_ROLE, LOCAL_CHANNEL, "ada", "k1", b"c" * 32, b"s" * 32),
    ):
        assert not is_client_proof(KEY.verifier(), other, client_proof(KEY, SAID))


def test_the_table_of_the_server_does_not_let_its_thief_in() -> None:
    stolen = KEY.verifier()
    for guess in (stolen.verifier, stolen.server_key):
        forged = Key("ada", "k1", guess)
        assert not is_client_proof(stolen, SAID, client_proof(forged, SAID))


def test_no_key_fits_the_verifier_of_nobody_and_it_is_always_the_same() -> None:
    nobody = Verifier.nobody(b"salt", "eve", "k1")
    assert nobody == Verifier.nobody(b"salt", "eve", "k1") != Verifier.nobody(b"salt", "eve", "k2")
    assert not is_client_proof(nobody, SAID, client_proof(KEY, SAID))


def test_a_key_survives_its_file_and_is_not_printed(tmp_path: Path) -> None:
    key = Key.generate("ada@lab")
    path = tmp_path / "key"
    path.write_text(key.text())
    path.chmod(0o600)
    assert read_key_file(path) == key
    assert key.secret.hex() not in repr(key) and "secret" not in repr(key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_text(KEY.text())
    path.chmod(mode)
    with pytest.raises(AccessDenied, match="chmod 600"):
        read_key_file(path)


@pytest.mark.parametrize(
    "text", ["", "hello", KEY.text()[:-9], KEY.text().replace("ada", "a/b"), "\0" * 2000]
)
def test_a_broken_key_file_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises((AccessDenied, InvalidInput)) as caught:
        read_key_file(path)
    assert KEY.text().split()[-1][:20] not in str(caught.value)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessDenied, match=os.fspath(tmp_path)):
        read_key_file(tmp_path / "none")


def test_a_key_file_that_names_no_servers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(" ".join(KEY.text().split()[:-1]) + "\n")
    path.chmod(0o600)
    with pytest.raises(AccessDenied, match="is not a key file"):
        read_key_file(path)


def test_a_pin_is_the_hash_of_the_key_as_in_certificates() -> None:
    public = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    assert pin_of(public.public_bytes_raw()) == hashlib.sha256(public.public_bytes(encoding, form)).digest()


@pytest.mark.parametrize("public_key", [b"", bytes(31), bytes(32)])
def test_an_impossible_key_is_refused(public_key: bytes) -> None:
    with pytest.raises(AccessDenied):
        check_signature(bytes(32), public_key, b"message", bytes(64), "tag")
