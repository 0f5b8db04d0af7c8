"""Encrypted extents: AES-256-GCM of each segment, with the tags behind the ciphertext.
This module draws random numbers.

    plain      | segment 0 | segment 1 | rest |
    encrypted  | segment 0 | segment 1 | rest | trailer 0 | trailer 1 | trailer 2 |      trailer: tag, salt

So the bytes of a file stay where they are in the payload, and any segment can be opened without the others. Each
segment has a key of its own, from the data key and a random salt, so no pair of key and nonce is used twice.
"""

import hmac
import os
from collections.abc import Sequence
from struct import Struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dieselfs.errors import Damaged
from dieselfs.limits import KIB

SEGMENT_BYTES = 64 * KIB
TAG_BYTES = 16
SALT_BYTES = 16
TRAILER_BYTES = TAG_BYTES + SALT_BYTES

_CONTEXT = Struct("<QQQq")
_LABEL = b"dieselfs segment 1"
_NONCES = [number.to_bytes(12, "little") for number in range(1025)]
"""Of the segments of an extent, which has 64 MiB at most."""


def segments_of(plain_bytes: int) -> int:
    return -(-plain_bytes // SEGMENT_BYTES)


def sealed_length(plain_bytes: int) -> int:
    """The length of an encrypted extent, or file; and where in the encrypted file a place of the plain one is, if it
    is the first of a segment.
    """
    return plain_bytes + TRAILER_BYTES * segments_of(plain_bytes)


def plain_length(sealed_bytes: int) -> int:
    """The inverse of `sealed_length`. Raises Damaged for a length that no encrypted extent has."""
    segments = -(-sealed_bytes // (SEGMENT_BYTES + TRAILER_BYTES))
    plain_bytes = sealed_bytes - TRAILER_BYTES * segments
    if plain_bytes < 0 or sealed_length(plain_bytes) != sealed_bytes:
        raise Damaged(f"an encrypted extent of {sealed_bytes} bytes")
    return plain_bytes


def extent_context(path: bytes, size: int, place: int, length: int, mtime_ns: int) -> bytes:
    """What binds an extent to its place: the plain path, size and time of its file, its place in it, and its length."""
    return _CONTEXT.pack(size, place, length, mtime_ns) + path


def derived_key(secret: bytes, info: bytes) -> bytes:
    """HKDF-Expand (RFC 5869) with SHA-256, of a random secret of 32 bytes, to 32 bytes; in a third of the time."""
    return hmac.digest(secret, info + b"\x01", "sha256")


def seal_extent(
    data_key: bytes, context: bytes, content: bytes | memoryview, salts: Sequence[bytes] = ()
) -> bytes:
    """The encrypted extent. `salts`: of the segments, instead of random ones; for tests."""
    view, bodies, trailers = memoryview(content), [], []
    for number in range(segments_of(len(view))):
        salt = salts[number] if salts else os.urandom(SALT_BYTES)
        cipher = AESGCM(derived_key(data_key, _LABEL + salt))
        plain = view[number * SEGMENT_BYTES : (number + 1) * SEGMENT_BYTES]
        sealed = cipher.encrypt(_NONCES[number], plain, context)
        bodies.append(memoryview(sealed)[:-TAG_BYTES])
        trailers.append(sealed[-TAG_BYTES:] + salt)
    return b"".join([*bodies, *trailers])


def open_segment(
    data_key: bytes, context: bytes, number: int, body: bytes | memoryview, trailer: bytes | memoryview
) -> bytes:
    """A segment of an extent, from its ciphertext and its trailer. Raises Damaged if it is not this one, or changed."""
    cipher = AESGCM(derived_key(data_key, _LABEL + bytes(trailer[TAG_BYTES:])))
    try:
        return cipher.decrypt(_NONCES[number], b"".join((body, trailer[:TAG_BYTES])), context)
    except InvalidTag:
        raise Damaged("is not what was encrypted for this place") from None


def open_extent(data_key: bytes, context: bytes, sealed: bytes | memoryview, plain_bytes: int) -> bytes:
    """A whole extent. Raises Damaged as `open_segment`."""
    view = memoryview(sealed)
    if plain_bytes <= SEGMENT_BYTES:
        return open_segment(data_key, context, 0, view[:plain_bytes], view[plain_bytes:])
    parts = []
    for number in range(segments_of(plain_bytes)):
        start, at = number * SEGMENT_BYTES, plain_bytes + number * TRAILER_BYTES
        body = view[start : min(start + SEGMENT_BYTES, plain_bytes)]
        parts.append(open_segment(data_key, context, number, body, view[at : at + TRAILER_BYTES]))
    return b"".join(parts)
