"""The test vectors of docs/reference/encryption.md, compared with the code."""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.encryption.key_record import KeyRecord, PublicRecipient, wrap_by_passphrase, wrap_for
from dieselfs.encryption.segments import extent_context, open_extent, seal_extent, segment_key
from tests.support.documents import table

DATA_KEY, ID, SALT = bytes(range(32)), bytes(range(0xA0, 0xB0)), bytes(range(0xA0, 0xB0))


def test_the_vectors() -> None:
    cipher, names = DatasetCipher(DATA_KEY), DatasetCipher(DATA_KEY).names
    context = extent_context(b"train/cat.jpg", 5, 0, 5, 1_600_000_000_000_000_001)
    private = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
    ada = PublicRecipient("ada", private.public_key().public_bytes_raw())
    wraps = (
        wrap_for(DATA_KEY, ID, ada, ephemeral=bytes(range(33, 65))),
        wrap_by_passphrase(DATA_KEY, ID, "office", b"correct horse", bytes(range(16)), 64),
    )
    sealed = seal_extent(DATA_KEY, context, b"meow\n", [SALT])
    made = [
        cipher.key_id.hex(),
        names.seal_path(b"train/cat.jpg").decode(),
        names.seal_path(b"latest").decode(),
        names.seal_target(b"cat.jpg", names.seal_path(b"latest")).decode(),
        context.hex(),
        segment_key(DATA_KEY, SALT).hex(),
        sealed.hex(),
        str(ada),
        *(wrap.line() for wrap in wraps),
    ]
    assert [value.strip("`") for _, value in table("reference/encryption.md", "## Test vectors")] == made
    plain = bytearray(5)
    open_extent(DATA_KEY, context, memoryview(sealed), memoryview(plain))
    assert plain == b"meow\n"
    record = KeyRecord(cipher.key_id, wraps)
    assert KeyRecord.decode(record.encode()) == record
