"""Digests: known values, and their lengths."""

from dieselfs.digests import DIGEST_BYTES, EXTENT_DIGEST_BYTES, NO_DIGEST, digest_of, extent_digest_of

BLAKE3_OF_NOTHING = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
"""From the specification of BLAKE3."""


def test_digests_are_blake3() -> None:
    assert digest_of(b"").hex() == BLAKE3_OF_NOTHING
    assert extent_digest_of(b"") == digest_of(b"")[:EXTENT_DIGEST_BYTES]
    assert (len(digest_of(b"x")), len(NO_DIGEST)) == (DIGEST_BYTES, EXTENT_DIGEST_BYTES)


def test_any_buffer_has_the_digest_of_its_bytes() -> None:
    data = bytes(range(256)) * 5
    assert digest_of(bytearray(data)) == digest_of(memoryview(data)) == digest_of(data)
    assert extent_digest_of(memoryview(data)[7:9]) == extent_digest_of(data[7:9])
