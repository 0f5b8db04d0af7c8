"""BLAKE3 digests, which prove that bytes are those that were stored. No I/O. It starts threads.

A digest is checked once, when bytes arrive from a store or from another machine. Nobody can make other bytes with the
same digest; xxh3, which detects accidents only, stays for values in memory and for the lookup of paths.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from blake3 import blake3

from dieselfs.process.system_limits import usable_processors

Buffer = bytes | bytearray | memoryview

LARGE_BYTES = 16 << 20
"""From this size on, several threads compute the digest of a file."""
THREADS_MAX = 16

DIGEST_BYTES = 32
"""Length of the digest of a payload, a header, a snapshot, or a dataset."""
EXTENT_DIGEST_BYTES = 16
"""Length of the digest of an extent or a link's target: every header and snapshot has one for each."""

NO_DIGEST = bytes(EXTENT_DIGEST_BYTES)
"""Stands for the digest of an entry without bytes."""

EXTENT_DIGESTS = np.dtype(f"V{EXTENT_DIGEST_BYTES}")
"""A column of digests of extents: elements are compared whole, and `tolist` gives byte strings."""
DIGESTS = np.dtype(f"V{DIGEST_BYTES}")


def digest_of(data: Buffer) -> bytes:
    """The digest of `data`, DIGEST_BYTES long."""
    return blake3(data).digest()


def file_digest_of(data: Buffer) -> bytes:
    """The same, of a whole file, by all processors if it is large. Its threads end with it, as a process may fork."""
    if len(data) < LARGE_BYTES:
        return digest_of(data)
    return blake3(data, max_threads=min(usable_processors(), THREADS_MAX)).digest()


class FollowingDigest:
    """The same, while the file is written from its beginning on: by a thread that follows the writer. It ends with
    `close`, as its helpers do.
    """

    def __init__(self, data: memoryview) -> None:
        """`data`: the whole file, mapped."""
        self._data, self._taken = data, 0
        self._parts: list[Future[object]] = []
        self._hasher = blake3(max_threads=min(usable_processors(), THREADS_MAX))
        self._thread = ThreadPoolExecutor(1, "digest")

    def written_to(self, end: int) -> None:
        """All bytes before `end` are there."""
        if end - self._taken >= LARGE_BYTES:
            self._take(end)

    def finish(self) -> bytes:
        """All bytes are there. Waits for the digest."""
        self._take(len(self._data))
        for part in self._parts:
            part.result()
        return self._hasher.digest()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _take(self, end: int) -> None:
        self._parts.append(self._thread.submit(self._hasher.update, self._data[self._taken : end]))
        self._taken = end


def extent_digest_of(data: Buffer) -> bytes:
    """The digest of an extent or a link's target, EXTENT_DIGEST_BYTES long."""
    return blake3(data).digest(EXTENT_DIGEST_BYTES)
