"""Reused memory for chunks in flight, shared with the page helper. This module maps memory.

It saves a page fault per 4 KB, and a copy of each chunk for the page helper.
"""

import ctypes
import mmap
import os
import weakref
from contextlib import suppress
from threading import Lock


class BufferPool:
    """Slots of one size. Safe to use from several threads.

    A slot is in use while there is a reference to its memory, even to a slice of a slice.
    """

    def __init__(self, slot_bytes: int, slots: int, spare_slots: int = 0) -> None:
        """`spare_slots`: used when the others are not free; the system gets their memory back (`keep_spare`)."""
        self._slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.length_bytes = self._slot_bytes * (slots + spare_slots)
        self._usual = self._kept = slots
        self.descriptor = os.memfd_create("dieselfs-buffers", os.MFD_CLOEXEC)
        """The memory of all slots, from its beginning, for other processes to map."""
        os.ftruncate(self.descriptor, self.length_bytes)
        self._memory = mmap.mmap(self.descriptor, self.length_bytes)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # Both are guarded by _lock; the last is taken first.
        self._free = list(range(slots))
        self._spare = list(range(slots + spare_slots - 1, slots - 1, -1))
        self._lock = Lock()

    def take(self, length_bytes: int) -> memoryview | None:
        """Uninitialised memory of this length; None if no slot is free, or a slot is too small."""
        if not 0 < length_bytes <= self._slot_bytes:
            return None
        with self._lock:
            if not self._free and not self._spare:
                return None
            slot = (self._free or self._spare).pop()
        owner = (ctypes.c_char * length_bytes).from_buffer(self._memory, slot * self._slot_bytes)
        weakref.finalize(owner, self._give_back, slot).atexit = False
        return memoryview(owner).cast("B")

    def _give_back(self, slot: int) -> None:
        # May run at any point, even within `take`, so without the lock: `append` is atomic.
        if slot >= self._kept:
            self._empty(slot)
        (self._free if slot < self._usual else self._spare).append(slot)

    def keep_spare(self, length_bytes: int) -> None:
        """Keep this much of spare slots for their next use; the memory of others is given back when they are free."""
        before, self._kept = self._kept, self._usual + length_bytes // self._slot_bytes
        if self._kept < before:
            with self._lock:
                for slot in self._spare:
                    if slot >= self._kept:
                        self._empty(slot)

    def _empty(self, slot: int) -> None:
        with suppress(OSError):  # the memory is locked, and stays
            self._memory.madvise(mmap.MADV_REMOVE, slot * self._slot_bytes, self._slot_bytes)

    def place(self, view: memoryview) -> int | None:
        """The offset of a view from `take` in the pool; None for any other view, and for a part of one."""
        owner = view.obj
        if not isinstance(owner, ctypes.Array) or len(owner) != len(view):
            return None
        place = ctypes.addressof(owner) - self._start
        return place if 0 <= place < self.length_bytes else None

    def close(self) -> None:
        """Close the descriptor; the memory is freed with its last reference."""
        os.close(self.descriptor)
