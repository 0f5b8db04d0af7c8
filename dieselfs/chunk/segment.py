"""A segment: the payload of a chunk in a sealed memfd. This module maps memory.

The maker of a segment fills, verifies and seals it, and then passes its descriptor on. The kernel enforces seals: no
receiver of the descriptor can change or truncate the bytes. There is no file in /dev/shm that would stay after a crash
or that another user could open. The memory is freed with its last reference.

A mapping survives fork (the child has the same memory), and the descriptor can be sent to a spawned process. Mappings
are made by `mmap` of the C library, because each mapping of Python 3.11 keeps a descriptor open, and descriptors are
limited.

The memory is in huge pages if Linux has MADV_COLLAPSE (6.1), whatever `shmem_enabled` says. The first read of 4 MiB by
a process then has 2 page faults instead of 64, and takes a quarter of the processor time.
"""

import ctypes
import fcntl
import mmap
import os
import weakref
from typing import Any, Protocol

from dieselfs.errors import Damaged, NoRoom, Unavailable
from dieselfs.limits import MIB

_F_SEAL_FUTURE_WRITE = 0x10
"""Since Linux 5.1; missing in Python's `fcntl`."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL

HUGE_PAGE_BYTES = 2 * MIB
"""Of most processors; on others, MADV_COLLAPSE fails or does nothing."""
_HUGE_BYTES_MIN = HUGE_PAGE_BYTES * 7 // 8
"""The end of a segment gets a huge page from this size on: at most an eighth of it is wasted."""
_PROT_NONE, _MAP_FIXED, _MADV_COLLAPSE = 0, 0x10, 25
"""Missing in Python's `mmap`."""

_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value


class Memory(Protocol):
    """Memory that stays mapped while it is referenced. It is a buffer, and a slice of it is a copy."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...


def readonly_view(memory: Memory) -> memoryview:
    """All of `memory`, one-dimensional uint8, without a copy."""
    buffer: Any = memory  # which `Memory` cannot say before Python 3.12
    return memoryview(buffer).cast("B").toreadonly()


def _huge_bytes(length_bytes: int) -> int:
    """The length of the huge pages of a segment, which may end behind it."""
    return (length_bytes + HUGE_PAGE_BYTES - _HUGE_BYTES_MIN) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES


def _map(address: int | None, length_bytes: int, protection: int, flags: int, descriptor: int) -> int:
    """Raises OSError."""
    place: int | None = _library.mmap(address, length_bytes, protection, flags, descriptor, 0)
    if place is None or place == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return place


def _aligned_room(length_bytes: int) -> int:
    """The address of reserved memory at a multiple of HUGE_PAGE_BYTES. Raises OSError."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _map(None, length_bytes + HUGE_PAGE_BYTES, _PROT_NONE, flags, -1)
    before = -start % HUGE_PAGE_BYTES
    if before:
        _library.munmap(start, before)
    _library.munmap(start + before + length_bytes, HUGE_PAGE_BYTES - before)
    return start + before


def _mapped(descriptor: int, length_bytes: int, protection: int) -> Any:
    huge_bytes = _huge_bytes(length_bytes)
    mapped_bytes = -(-max(length_bytes, huge_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    if huge_bytes:
        room = _aligned_room(mapped_bytes)
        try:
            address = _map(room, mapped_bytes, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
        except OSError:
            _library.munmap(room, mapped_bytes)
            raise
    else:
        address = _map(None, mapped_bytes, protection, mmap.MAP_SHARED, descriptor)
    array = (ctypes.c_char * length_bytes).from_address(address)
    weakref.finalize(array, _library.munmap, address, mapped_bytes).atexit = False
    return array


def _make_huge(descriptor: int, array: Any) -> None:
    """Get huge pages for a segment that is still empty, which costs less than filling small ones."""
    huge_bytes = _huge_bytes(len(array))
    for start in range(0, huge_bytes, HUGE_PAGE_BYTES):
        os.pwrite(descriptor, b"\0", start)
    if huge_bytes:
        _library.madvise(
            ctypes.addressof(array), huge_bytes, _MADV_COLLAPSE
        )  # without them it is only slower


def map_sealed(descriptor: int, length_bytes: int) -> Memory:
    """Map a segment of another process read-only; the descriptor may be closed afterwards.

    Writing to it kills the process: pass on `memoryview(...).toreadonly()`. Raises Damaged if it is not sealed
    or not of this length, Unavailable if there is no room to map it.
    """
    if length_bytes <= 0:
        raise Damaged(f"a segment of {length_bytes} bytes")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size_bytes = os.fstat(descriptor).st_size
        if seals & SEALS != SEALS:
            raise Damaged("a segment that is not sealed: the process that made it could still change it")
        if size_bytes != length_bytes:
            raise Damaged(f"a segment of {size_bytes} bytes, expected {length_bytes}")
        memory: Memory = _mapped(descriptor, length_bytes, mmap.PROT_READ)
        return memory
    except OSError as error:
        raise Unavailable(f"cannot map a segment of {length_bytes} bytes: {error.strerror}") from None


class Segment:
    """Memory for one payload, and its descriptor. Safe to read from several threads; made and closed by one.

    An unreferenced segment is closed.
    """

    def __init__(self, descriptor: int, memory: Any, is_sealed: bool) -> None:
        """Use `create` or `adopt`."""
        self._descriptor = descriptor
        self._release = weakref.finalize(self, os.close, descriptor)
        self._memory = memory
        self._is_sealed = is_sealed

    @classmethod
    def create(cls, length_bytes: int) -> "Segment":
        """New memory for at least one byte, to be filled by `write` or `view`. Raises NoRoom without memory or
        descriptor.
        """
        descriptor = -1
        try:
            descriptor = os.memfd_create("dieselfs-chunk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, length_bytes)
            array = _mapped(descriptor, length_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
            _make_huge(descriptor, array)
            return cls(descriptor, array, False)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise NoRoom(f"no room for a chunk of {length_bytes} bytes: {error.strerror}") from None

    @classmethod
    def adopt(cls, descriptor: int, length_bytes: int) -> "Segment":
        """The segment of another process, from its descriptor, which is taken over (and closed if this raises).

        The seals prove that the bytes have not changed since sealing. The caller verifies their content, unless the
        sender has. Raises as `map_sealed`.
        """
        try:
            return cls(descriptor, map_sealed(descriptor, length_bytes), True)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, offset: int, content: memoryview) -> None:
        """Write bytes, before `seal`. For new memory it takes half the time of a write to `view`, which has a page
        fault per 4 KB and clears the page first. Raises NoRoom without memory.
        """
        try:
            while content:
                size = os.pwrite(self._descriptor, content, offset)
                offset += size
                content = content[size:]
        except OSError as error:
            raise NoRoom(f"no room for a chunk of {len(self)} bytes: {error.strerror}") from None

    def seal(self) -> None:
        """Make the bytes final. Afterwards `view` is read-only, and the descriptor may be passed on."""
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
        self._is_sealed = True

    @property
    def descriptor(self) -> int:
        """For other processes, after `seal`. Closed with the segment."""
        return self._descriptor

    @property
    def view(self) -> memoryview:
        """The bytes; writable until `seal`. The memory stays while a view is in use, also after `close`."""
        view = memoryview(self._memory).cast("B")
        return view.toreadonly() if self._is_sealed else view

    def __len__(self) -> int:
        return len(self._memory)

    def close(self) -> None:
        """Release descriptor and memory; existing views and mappings stay valid. May be called again."""
        self._descriptor = -1
        self._memory = b""
        self._release()
