"""The record of a key: who can open it, and what is refused."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dieselfs.encryption.cipher import DatasetCipher, key_id_of
from dieselfs.encryption.key_record import (
    RECIPIENTS_MAX,
    KeyRecord,
    PublicRecipient,
    unwrap,
    unwrap_by_passphrase,
    wrap_by_passphrase,
    wrap_for,
)
from dieselfs.errors import Damaged, InvalidInput

DATA_KEY, DATASET_ID = bytes(range(32)), bytes(16)
KEY_ID = key_id_of(DATA_KEY)
PRIVATE = bytes(range(1, 33))
ADA = PublicRecipient("ada", X25519PrivateKey.from_private_bytes(PRIVATE).public_key().public_bytes_raw())


def test_a_recipient_opens_the_key_and_nobody_else() -> None:
    wrap = wrap_for(DATA_KEY, DATASET_ID, ADA)
    assert unwrap(wrap, PRIVATE, DATASET_ID, KEY_ID) == DATA_KEY
    for private, dataset_id, key_id in (
        (bytes(range(2, 34)), DATASET_ID, KEY_ID),
        (PRIVATE, bytes([1] * 16), KEY_ID),
        (PRIVATE, DATASET_ID, bytes(16)),
    ):
        with pytest.raises(Damaged, match="does not open"):
            unwrap(wrap, private, dataset_id, key_id)


def test_a_passphrase_opens_the_key() -> None:
    wrap = wrap_by_passphrase(DATA_KEY, DATASET_ID, "office", b"correct horse", memory_kib=64)
    assert unwrap_by_passphrase(wrap, b"correct horse", DATASET_ID, KEY_ID) == DATA_KEY
    with pytest.raises(Damaged, match="does not open"):
        unwrap_by_passphrase(wrap, b"correct horses", DATASET_ID, KEY_ID)
    hostile = wrap.__class__(wrap.kind, wrap.name, (1 << 40, 3), wrap.values)
    with pytest.raises(Damaged, match="out of range"):
        unwrap_by_passphrase(hostile, b"x", DATASET_ID, KEY_ID)


def test_the_record_is_text_that_comes_back() -> None:
    wraps = (
        wrap_for(DATA_KEY, DATASET_ID, ADA, "vision"),
        wrap_by_passphrase(DATA_KEY, DATASET_ID, "office", b"x", memory_kib=64),
    )
    record = KeyRecord(KEY_ID, wraps)
    assert KeyRecord.decode(record.encode()) == record
    assert record.encode().startswith(b"dieselfs-keys 1 " + KEY_ID.hex().encode() + b"\nx25519 vision/ada ")
    assert [wrap.name for wrap in record.without("vision").wraps] == ["office"]
    assert record.with_wraps([wraps[1]]).wraps == (wraps[0], wraps[1])
    erased = KeyRecord(b"", erased_s=1_700_000_000)
    assert KeyRecord.decode(erased.encode()) == erased
    assert PublicRecipient.parse(f"{ADA}\n") == ADA


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"dieselfs-keys 2 00\n",
        b"dieselfs-keys 1 xx\n",
        b"dieselfs-keys 1 00\nrsa ada x\n",
        b"dieselfs-keys 1 00\nx25519 ada AAAA BBBB CCCC\n",
        b"dieselfs-keys 1 00\nargon2id ada x 3 AAAA BBBB\n",
        b"dieselfs-keys 1 erased 5\nx25519\n",
        b"x" * 300_000,
        b"dieselfs-keys 1 00\n" + b"a\n" * (RECIPIENTS_MAX + 1),
    ],
)
def test_what_is_no_record_is_damage(content: bytes) -> None:
    with pytest.raises(Damaged):
        KeyRecord.decode(content)


def test_what_is_no_recipient_is_refused() -> None:
    for text in ("", "dieselfs-recipient ada", "dieselfs-recipient a/b " + "A" * 43, "ssh-rsa AAAA"):
        with pytest.raises(InvalidInput):
            PublicRecipient.parse(text)
    with pytest.raises(InvalidInput, match="no public key"):
        wrap_for(DATA_KEY, DATASET_ID, PublicRecipient("zero", bytes(32)))


def test_a_key_is_not_shown() -> None:
    assert "00010203" not in repr(DatasetCipher(DATA_KEY)) and "\\x01" not in repr(DatasetCipher(DATA_KEY))
