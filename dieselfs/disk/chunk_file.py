"""The file of a chunk on the disk of a node, and ranges of its payload. This module reads and writes files.

A file of the length of the payload has the payload. A shorter one has it packed, as it came from a server
(`dieselfs.chunk.frames`). The content is not trusted, see `dieselfs.disk.tier`.
"""

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dieselfs.chunk.frames import Read, unpacking
from dieselfs.disk.space import ALIGNMENT_BYTES, aligned_bytes
from dieselfs.errors import Damaged
from dieselfs.limits import KIB

GAP_BYTES = 64 * KIB
"""Ranges with smaller gaps between them are one read."""

Range = tuple[int, int]
"""Offset in the payload, and length; both in bytes."""

ReadFile = Callable[[Path, int, Sequence[Range]], memoryview | None]
"""As `read_ranges_of`."""


class Torn(Exception):
    """The file cannot be the payload."""


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


def read_ranges_of(file: Path, length_bytes: int, ranges: Sequence[Range]) -> memoryview | None:
    """Ranges of a payload of this length, joined; None without the file. Raises Torn, OSError."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Torn
        bypass_page_cache(descriptor)
        return ranges_in(
            lambda start, length: read_at(descriptor, length, start), status.st_size, length_bytes, ranges
        )
    finally:
        os.close(descriptor)


def ranges_in(read: Read, kept_bytes: int, length_bytes: int, ranges: Sequence[Range]) -> memoryview:
    """Ranges of a payload of this length, joined; `read` returns ranges of its file, of `kept_bytes`. Raises Torn, and
    as `read`.
    """
    if kept_bytes > length_bytes:
        raise Torn
    try:
        if kept_bytes < length_bytes:
            read = unpacking(read, kept_bytes, length_bytes, "packed")
        found = []
        for start, length, inner in merged(ranges):
            content = memoryview(read(start, length))
            if len(content) != length:
                raise Torn
            found += [content[first - start : first - start + size] for first, size in inner]
    except Damaged:
        raise Torn from None
    return found[0] if len(found) == 1 else memoryview(b"".join(found))


def merged(ranges: Sequence[Range], gap_bytes: int = GAP_BYTES) -> list[tuple[int, int, list[Range]]]:
    """Reads that cover ranges in their order: offset, length, and the ranges within. Neighbours with a small gap are
    one read.
    """
    reads: list[tuple[int, int, list[Range]]] = []
    for offset, length in ranges:
        if reads:
            start, read_bytes, inner = reads[-1]
            if offset >= start and offset - start - read_bytes <= gap_bytes:
                inner.append((offset, length))
                reads[-1] = start, max(read_bytes, offset + length - start), inner
                continue
        reads.append((offset, length, [(offset, length)]))
    return reads
