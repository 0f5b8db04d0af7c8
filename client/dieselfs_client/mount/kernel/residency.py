"""Residency: which bytes of an open file are in the page cache. This module calls the kernel, and reads no data.

cachestat(2) (Linux 6.5) counts the pages of a range; older kernels have mincore(2), which needs a mapping. Both answer
only the owner of a file, and users who may write it: for others, mincore reports every page as resident.

It imports nothing of dieselfs, because the page helper runs without the package.
"""

import ctypes
import errno
import mmap
import os

PAGE_BYTES = mmap.PAGESIZE
SAMPLE_BYTES = 1 << 20
"""Only parts of this size are counted of a range that is larger than SAMPLES_MAX of them."""
SAMPLES_MAX = 16
"""Parts of one large range."""

_CACHESTAT = 451  # the same number on all architectures
_WITHOUT_CACHESTAT = frozenset({errno.ENOSYS, errno.EPERM})  # EPERM: filtered, as in some containers
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def resident_pages(descriptor: int, offset: int, length: int) -> int:
    """How many pages of `length` bytes from `offset` on are in the page cache. Raises OSError."""
    if length <= 0:
        return 0
    try:
        return counted_by_cachestat(descriptor, offset, length)
    except OSError as error:
        if error.errno not in _WITHOUT_CACHESTAT:
            raise
    return counted_by_mincore(descriptor, offset, length)


def counted_by_cachestat(descriptor: int, offset: int, length: int) -> int:
    """As `resident_pages`, for a positive `length`. Raises OSError, with ENOSYS before Linux 6.5."""
    span = (ctypes.c_uint64 * 2)(offset, length)
    found = (ctypes.c_uint64 * 5)()  # resident, dirty, in writeback, evicted, recently evicted
    if _libc.syscall(_CACHESTAT, descriptor, span, found, 0):
        raise _last_error()
    return int(found[0])


def counted_by_mincore(descriptor: int, offset: int, length: int) -> int:
    """As `resident_pages`, for a positive `length`. Bytes after the end of the file are not resident."""
    length = min(length, os.fstat(descriptor).st_size - offset)
    if length <= 0:
        return 0
    first = offset // PAGE_BYTES * PAGE_BYTES
    length += offset - first
    start = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, first)
    if start == _MAP_FAILED:
        raise _last_error()
    try:
        flags = (ctypes.c_ubyte * -(-length // PAGE_BYTES))()
        if _libc.mincore(start, length, flags):
            raise _last_error()
        return sum(flag & 1 for flag in flags)
    finally:
        _libc.munmap(start, length)


def is_resident(descriptor: int, offset: int, length: int) -> bool:
    """Whether all pages of a range, which ends within the file, are in the page cache; large ranges are sampled."""
    return all(
        resident_pages(descriptor, start, part) == _pages(start, part)
        for start, part in samples(offset, length)
    )


def samples(offset: int, length: int) -> list[tuple[int, int]]:
    """The parts of a range to look at: the whole of it, or SAMPLES_MAX parts of SAMPLE_BYTES at equal distances, with
    the first and the last. No I/O.
    """
    if length <= SAMPLE_BYTES * SAMPLES_MAX:
        return [(offset, length)] if length > 0 else []
    room = length - SAMPLE_BYTES
    starts = [offset + room * number // (SAMPLES_MAX - 1) for number in range(SAMPLES_MAX)]
    return [(start, SAMPLE_BYTES) for start in starts]


def _pages(offset: int, length: int) -> int:
    return -(-(offset + length) // PAGE_BYTES) - offset // PAGE_BYTES


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
