"""The bundle: one object with the heads (preamble and header) of many chunks that refer to others
(`docs/reference/chunk-format.md`). Bytes in, values out; no I/O.

The ID of such a chunk says which bundle has it, and the chunks of a bundle follow it in order:

    bytes  0-3   seconds since 1970, big-endian, as in all IDs
    bytes  4-9   0xff: no network interface has this address
    bytes 10-13  random
    bytes 14-15  0: the bundle; else the number of the chunk in it, big-endian, from 1 on
"""

import secrets
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from dieselfs.chunk.ids import chunk_name
from dieselfs.columns import U32
from dieselfs.digests import Buffer
from dieselfs.errors import Damaged
from dieselfs.fields import CHECKSUM_BYTES, pack_preamble, unpack_preamble
from dieselfs.limits import MIB

BUNDLE_CHUNKS_MAX = 4096
BUNDLE_BYTES = 8 * MIB
"""A bundle that has this many bytes is full."""

MAGIC = b"\x89DSLB\r\n\x1a"
FORMAT_VERSION = 1

_MARK = b"\xff" * 6
_NUMBER_BYTES = 2
# The checksum of these bytes follows them.
_PREAMBLE = struct.Struct("<8sHHI16s")
BUNDLE_PREAMBLE_BYTES = _PREAMBLE.size + CHECKSUM_BYTES


def new_bundle_id(chunk_id: bytes) -> bytes:
    """The ID of a bundle that is made when `chunk_id` is."""
    return chunk_id[:4] + _MARK + secrets.token_bytes(4) + bytes(_NUMBER_BYTES)


def is_bundled(chunk_id: bytes) -> bool:
    """Whether the ID is that of a bundle, or of a chunk in one."""
    return chunk_id[4:10] == _MARK


def is_bundle(object_id: bytes) -> bool:
    return is_bundled(object_id) and not number_of(object_id)


def bundle_of(chunk_id: bytes) -> bytes:
    """The ID of the bundle with this chunk."""
    return chunk_id[:-_NUMBER_BYTES] + bytes(_NUMBER_BYTES)


def number_of(chunk_id: bytes) -> int:
    """0 for the bundle itself."""
    return int.from_bytes(chunk_id[-_NUMBER_BYTES:], "big")


def bundled_id(bundle_id: bytes, number: int) -> bytes:
    """The ID of a chunk in a bundle."""
    return bundle_id[:-_NUMBER_BYTES] + number.to_bytes(_NUMBER_BYTES, "big")


def encode_bundle(bundle_id: bytes, heads: Sequence[bytes]) -> bytes:
    """The object of a bundle with the heads of chunks 1, 2 and so on."""
    assert 0 < len(heads) <= BUNDLE_CHUNKS_MAX
    preamble = pack_preamble(_PREAMBLE, MAGIC, FORMAT_VERSION, len(heads), bundle_id)
    ends = np.cumsum([len(head) for head in heads]).astype(U32).tobytes()
    return b"".join((preamble, ends, xxh3_64_digest(ends), *heads))


def index_bytes(preamble: bytes, bundle_id: bytes) -> int:
    """Length of the index, which follows the preamble of a bundle. Raises Damaged."""
    name = f"bundle {chunk_name(bundle_id)}"
    count: int
    count, found_id = unpack_preamble(_PREAMBLE, MAGIC, FORMAT_VERSION, preamble, name, "bundle")
    if found_id != bundle_id or not 0 < count <= BUNDLE_CHUNKS_MAX:
        raise Damaged(f"{name}: offset 12: bundle {chunk_name(found_id)} with {count} chunks")
    return count * U32.itemsize + CHECKSUM_BYTES


def decode_index(index: bytes, bundle_id: bytes) -> npt.NDArray[np.int64]:
    """Where the heads are in the object: shape (chunks + 1,); chunk `i` ends where chunk `i + 1` begins, and element 0
    is where chunk 1 does. Raises Damaged.
    """
    ends, checksum = index[:-CHECKSUM_BYTES], index[-CHECKSUM_BYTES:]
    lengths = np.diff(np.frombuffer(ends, U32).astype(np.int64), prepend=0)
    if xxh3_64_digest(ends) != checksum or (lengths <= 0).any():
        raise Damaged(f"bundle {chunk_name(bundle_id)}: offset {BUNDLE_PREAMBLE_BYTES}: the index is damaged")
    return np.cumsum([BUNDLE_PREAMBLE_BYTES + len(index), *lengths])


def decode_bundle(data: Buffer, bundle_id: bytes) -> Iterator[tuple[bytes, Buffer]]:
    """IDs and heads of the chunks in the object of a bundle. Raises Damaged, also if it is shorter or longer."""
    view = memoryview(data)
    index_end = BUNDLE_PREAMBLE_BYTES + index_bytes(bytes(view[:BUNDLE_PREAMBLE_BYTES]), bundle_id)
    if len(view) < index_end:
        raise Damaged(f"bundle {chunk_name(bundle_id)}: offset {len(view)}: it ends in its index")
    ends = decode_index(bytes(view[BUNDLE_PREAMBLE_BYTES:index_end]), bundle_id).tolist()
    if len(view) != ends[-1]:
        raise Damaged(f"bundle {chunk_name(bundle_id)}: offset {len(view)}: its heads end at {ends[-1]}")
    for number, (start, end) in enumerate(pairwise(ends), 1):
        yield bundled_id(bundle_id, number), view[start:end]
