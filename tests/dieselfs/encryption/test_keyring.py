"""The keys of a user: files that are private, and what is remembered of datasets."""

import os
from pathlib import Path

import pytest

from dieselfs.encryption.key_record import KeyRecord, wrap_by_passphrase
from dieselfs.encryption.keyring import Keyring
from dieselfs.errors import AccessDenied, Damaged, InvalidInput

ID = bytes(16)


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "own" / "identity", "", tmp_path / "own" / "encrypted")


def test_the_identity_is_made_once_and_is_private(keyring: Keyring, tmp_path: Path) -> None:
    recipient = keyring.recipient()
    assert keyring.recipient() == recipient
    assert (tmp_path / "own/identity").stat().st_mode & 0o777 == 0o600
    (tmp_path / "own/identity").chmod(0o644)
    with pytest.raises(AccessDenied, match="chmod 600"):
        keyring.recipient()


def test_a_key_of_this_user_opens_and_is_remembered(keyring: Keyring) -> None:
    assert keyring.cipher("pets", ID, b"") is None
    record = keyring.new_record(ID)
    cipher = keyring.cipher("pets", ID, record.encode())
    assert cipher is not None and cipher.key_id == record.key_id
    with pytest.raises(Damaged, match="no record of its keys"):
        keyring.cipher("pets", ID, b"")
    with pytest.raises(Damaged, match="another key than before"):
        keyring.cipher("pets", ID, keyring.new_record(ID).encode())


def test_who_is_no_recipient_is_told_what_to_do(keyring: Keyring, tmp_path: Path) -> None:
    other = Keyring(tmp_path / "other" / "identity", "", tmp_path / "other" / "encrypted")
    for _ in range(2):
        with pytest.raises(AccessDenied, match="dlcmd key add dl://pets FILE"):
            other.cipher("pets", ID, keyring.new_record(ID).encode())
        other.recipient()
    with pytest.raises(AccessDenied, match="destroyed by dlcmd erase"):
        other.cipher("pets", ID, KeyRecord(b"", erased_s=5).encode())


def test_a_passphrase_is_read_from_a_private_file(keyring: Keyring, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_bytes(b"correct horse\n")
    file.chmod(0o600)
    record = keyring.new_record(ID)
    cipher = keyring.cipher("pets", ID, record.encode())
    assert cipher is not None
    wrap = wrap_by_passphrase(cipher.data_key, ID, "office", b"correct horse", memory_kib=64)
    record = KeyRecord(record.key_id, (wrap,))
    other = Keyring(tmp_path / "none", str(file), tmp_path / "encrypted")
    found = other.cipher("pets", ID, record.encode())
    assert found is not None and found.data_key == cipher.data_key
    file.write_bytes(b"wrong")
    with pytest.raises(AccessDenied, match="does not open"):
        other.cipher("pets", ID, record.encode())
    file.write_bytes(b"\n")
    with pytest.raises(InvalidInput, match="empty"):
        other.passphrase()
    with pytest.raises(AccessDenied, match="set DIESELFS_PASSPHRASE_FILE"):
        Keyring(tmp_path / "none", "", tmp_path / "encrypted").cipher("pets", ID, record.encode())


def test_an_identity_of_another_form_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "identity"
    file.write_text("secret")
    os.chmod(file, 0o600)
    with pytest.raises(AccessDenied, match="restore it from a copy"):
        Keyring(file, "", tmp_path / "encrypted").recipient()
