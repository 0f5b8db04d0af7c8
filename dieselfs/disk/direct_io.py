"""Reads and writes without the page cache, where the file system can do that. This module reads and writes files.

What is read here goes into memory that is counted elsewhere. In the page cache it would be there twice.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress

ALIGNMENT_BYTES = 4096
"""Of offsets, lengths and memory of direct reads and writes; a multiple of the sector of all usual disks."""


def aligned_bytes(length_bytes: int) -> int:
    """The length of whole sectors that have this many bytes."""
    return -(-length_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def new_buffer(length_bytes: int) -> memoryview:
    """New memory for direct I/O: `aligned_bytes` of this length, which is at least 1."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, aligned_bytes(length_bytes), flags=flags))


def bypass_page_cache(descriptor: int) -> None:
    """Make I/O on an open file direct. No effect on a file system without direct I/O, as overlays and old tmpfs."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)


def read_at(descriptor: int, length_bytes: int, offset: int) -> memoryview:
    """`length_bytes` of a file from `offset` on; fewer only where it ends. Raises OSError."""
    start = offset - offset % ALIGNMENT_BYTES
    end = offset + length_bytes
    buffer = new_buffer(max(end - start, 1))
    done = 0
    while start + done < end:
        count = _undirected(descriptor, os.preadv, buffer[done:], start + done)
        done += count
        if not count:
            break
    return buffer[offset - start : max(min(done, end - start), offset - start)]


def write_all(descriptor: int, buffer: memoryview) -> None:
    """Write a `new_buffer` from the beginning of a file on. Raises OSError."""
    done = 0
    while done < len(buffer):
        done += _undirected(descriptor, os.pwritev, buffer[done:], done)


def _undirected(
    descriptor: int, transfer: Callable[[int, list[memoryview], int], int], part: memoryview, offset: int
) -> int:
    """One transfer; again through the page cache, if the file system takes the flag but not the request."""
    try:
        return transfer(descriptor, [part], offset)
    except OSError as error:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return transfer(descriptor, [part], offset)
