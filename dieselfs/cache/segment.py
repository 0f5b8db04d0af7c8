"""One chunk's payload in memory that has no name: a sealed memfd. This module maps memory.

Who makes a segment fills and verifies it, seals it, and then hands out its descriptor. The seals are the kernel's:
nobody who gets the descriptor can change the bytes, or cut them off under somebody who reads. There is nothing in
/dev/shm that a crash could leave behind or another user could open; the memory is freed with its last user.

A mapping survives fork (the child sees the same memory) and the descriptor can be sent to a process that was
spawned. Mappings are made by `mmap` of the C library, because those of Python 3.11 each keep a descriptor of their own
open, and a process has few.
"""

import ctypes
import fcntl
import mmap
import os
import weakref
from typing import Any, Protocol

from dieselfs.errors import Damaged, NoRoom, Unavailable

_F_SEAL_FUTURE_WRITE = 0x10
"""Of Linux 5.1; Python's `fcntl` does not name it."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL

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
_MAP_FAILED = ctypes.c_void_p(-1).value


class Memory(Protocol):
    """Memory that is mapped for as long as anything refers to it. It is a buffer, and a slice of it is a copy."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...


def _mapped(descriptor: int, length_bytes: int, protection: int) -> Any:
    address = _library.mmap(None, length_bytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    array = (ctypes.c_char * length_bytes).from_address(address)
    weakref.finalize(array, _library.munmap, address, length_bytes).atexit = False
    return array


def map_sealed(descriptor: int, length_bytes: int) -> Memory:
    """Map a segment that somebody else made, to read it; the descriptor may be closed afterwards.

    Writing to it kills the process: give others `memoryview(...).toreadonly()`. Raises Damaged if it is not sealed
    or not of this length, Unavailable if there is no room to map it.
    """
    if length_bytes <= 0:
        raise Damaged(f"a segment of {length_bytes} bytes")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size_bytes = os.fstat(descriptor).st_size
        if seals & SEALS != SEALS:
            raise Damaged("a segment that is not sealed: whoever made it could still change it")
        if size_bytes != length_bytes:
            raise Damaged(f"a segment of {size_bytes} bytes where {length_bytes} belong")
        memory: Memory = _mapped(descriptor, length_bytes, mmap.PROT_READ)
        return memory
    except OSError as error:
        raise Unavailable(f"cannot map a segment of {length_bytes} bytes: {error.strerror}") from None


class Segment:
    """Memory for one payload, and its descriptor. Safe to read from several threads; made and closed by one.

    One that nobody refers to any more is closed.
    """

    def __init__(self, descriptor: int, memory: Any, is_sealed: bool) -> None:
        """Use `create` or `adopt`."""
        self._descriptor = descriptor
        self._release = weakref.finalize(self, os.close, descriptor)
        self._memory = memory
        self._is_sealed = is_sealed

    @classmethod
    def create(cls, length_bytes: int) -> "Segment":
        """New memory for at least one byte, to be filled through `write` or `view`. Raises NoRoom when there is none,
        or no descriptor.
        """
        descriptor = -1
        try:
            descriptor = os.memfd_create("dieselfs-chunk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, length_bytes)
            return cls(descriptor, _mapped(descriptor, length_bytes, mmap.PROT_READ | mmap.PROT_WRITE), False)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise NoRoom(f"no room for a chunk of {length_bytes} bytes: {error.strerror}") from None

    @classmethod
    def adopt(cls, descriptor: int, length_bytes: int) -> "Segment":
        """A segment that another process made, from its descriptor, which is taken over (and closed if this raises).

        The seals show that the bytes are those that were sealed; that they are the right ones is the caller's to
        verify, unless the descriptor comes from somebody who did. Raises as `map_sealed`.
        """
        try:
            return cls(descriptor, map_sealed(descriptor, length_bytes), True)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, offset: int, piece: memoryview) -> None:
        """Fill in a piece, before `seal`. Memory that is not there yet comes at half the price of writing to `view`,
        where each 4 KB of it is a page fault, and is cleared first. Raises NoRoom when there is none.
        """
        try:
            while piece:
                size = os.pwrite(self._descriptor, piece, offset)
                offset += size
                piece = piece[size:]
        except OSError as error:
            raise NoRoom(f"no room for a chunk of {len(self)} bytes: {error.strerror}") from None

    def seal(self) -> None:
        """Make the bytes final. Afterwards `view` is read-only, and the descriptor may be handed out."""
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
        self._is_sealed = True

    @property
    def descriptor(self) -> int:
        """To be sent to others once it is sealed. Closed with the segment."""
        return self._descriptor

    @property
    def view(self) -> memoryview:
        """The bytes; writable until `seal`. The memory stays while a view is in use, also after `close`."""
        view = memoryview(self._memory).cast("B")
        return view.toreadonly() if self._is_sealed else view

    def __len__(self) -> int:
        return len(self._memory)

    def close(self) -> None:
        """Let go of descriptor and memory; those who have mapped or view it keep it. May be called again."""
        self._descriptor = -1
        self._memory = b""
        self._release()
