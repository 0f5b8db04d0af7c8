"""Memory for chunks on their way, used again and again, and shared with the process that fills the page cache.

New memory costs a page fault for each 4 KB, and handing a chunk on costs a copy of it; with this, neither is paid. This
module maps memory.
"""

import ctypes
import mmap
import os
import weakref
from threading import Lock


class Arena:
    """A number of slots of one size. Safe to use from several threads.

    A slot is taken for as long as anything refers to its memory, be it a slice of a slice; only then is it used again.
    """

    def __init__(self, slot_bytes: int, slots: int) -> None:
        self.length_bytes = slot_bytes * slots
        self._slot_bytes = slot_bytes
        self.descriptor = os.memfd_create("dieselfs-arena", os.MFD_CLOEXEC)
        """For others to map; all of it, from its beginning."""
        os.ftruncate(self.descriptor, self.length_bytes)
        self._memory = mmap.mmap(self.descriptor, self.length_bytes)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._free = list(range(slots))  # guarded by _lock
        self._lock = Lock()

    def take(self, length_bytes: int) -> memoryview | None:
        """Memory for so many bytes, with anything in it; None if no slot is free, or if it does not fit into one."""
        if not 0 < length_bytes <= self._slot_bytes:
            return None
        with self._lock:
            if not self._free:
                return None
            slot = self._free.pop()
        owner = (ctypes.c_char * length_bytes).from_buffer(self._memory, slot * self._slot_bytes)
        weakref.finalize(owner, self._give_back, slot).atexit = False
        return memoryview(owner).cast("B")

    def _give_back(self, slot: int) -> None:
        # May run in the middle of anything, also of `take`: a list is appended to in one step, without the lock.
        self._free.append(slot)

    def place(self, view: memoryview) -> int | None:
        """Where in the arena a view begins that `take` gave; None for any other, and for a part of one."""
        owner = view.obj
        if not isinstance(owner, ctypes.Array) or len(owner) != len(view):
            return None
        place = ctypes.addressof(owner) - self._start
        return place if 0 <= place < self.length_bytes else None

    def close(self) -> None:
        """Let go of the descriptor; the memory goes with its last user."""
        os.close(self.descriptor)
