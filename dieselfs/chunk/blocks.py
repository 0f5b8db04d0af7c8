"""Blocks of a payload: small parts of large files, with checksums of their own. No I/O.

A digest covers a whole extent, up to a chunk. To read less, a server verifies the payload once, when it is stored or at
the first read, and keeps the checksum of each of its blocks. A block that arrives is compared with its checksum, which
finds damage in the store or on the way as a digest does. It does not protect from a server that lies; TLS and the
server's key do.
"""

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.limits import KIB

BLOCK_BYTES = 16 * KIB
"""Size of all blocks of a payload but the last, which may be shorter. The first begins at payload offset 0."""

Checksums = npt.NDArray[np.uint64]
"""Shape (n,): xxh3-64 of consecutive blocks."""


def block_checksums(content: bytes | bytearray | memoryview) -> Checksums:
    """The checksums of the blocks of `content`, which begins with a block."""
    view = memoryview(content)
    starts = range(0, len(view), BLOCK_BYTES)
    return np.array([xxh3_64_intdigest(view[start : start + BLOCK_BYTES]) for start in starts], np.uint64)


def block_range(offset: int, length: int) -> tuple[int, int]:
    """The numbers of the first block, and of the one behind the last, with the `length` bytes at payload `offset`."""
    return offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES)


def bytes_of(first: int, end: int, payload_bytes: int) -> tuple[int, int]:
    """The payload offset and the length of the blocks from `first` up to `end`."""
    start = first * BLOCK_BYTES
    return start, min(end * BLOCK_BYTES, payload_bytes) - start
