"""What all processes that read for a dataset have spent, in memory that they share. This module maps files of memory.

Where a process cannot share it, it counts its times alone.
"""

import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Self

import numpy as np

from dieselfs.telemetry.stalls import CAUSES, METER, Seconds, shared_out

_ROWS = 1021
"""A process adds to one of these rows, by its number: two that share one may lose a little."""


class SharedMemoryFile:
    """A file of memory, mapped from its first byte, that processes share. It pickles as its path below `/proc`, which
    exists while the process that made it lives; after that, or where this process may not open it, a new one is made.
    """

    NAME, MAPPED_BYTES = "", 0

    def __init__(self) -> None:
        descriptor = os.memfd_create(self.NAME, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, self.MAPPED_BYTES)
        self._map(os.getpid(), descriptor, f"/proc/{os.getpid()}/fd/{descriptor}")

    def _map(self, owner: int, descriptor: int, path: str) -> None:
        """`owner`: the process, if it is this one; 0 for others."""
        self._owner, self._descriptor, self._path = owner, descriptor, path
        self._memory = mmap.mmap(descriptor, self.MAPPED_BYTES)
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> tuple[Callable[[str], Self], tuple[str]]:
        return type(self)._attached, (self._path,)

    @classmethod
    def _attached(cls, path: str) -> Self:
        shared = cls.__new__(cls)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return cls()
        # The number of the process may be that of another one by now.
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{cls.NAME} "):
            os.close(descriptor)
            return cls()
        shared._map(0, descriptor, path)
        return shared


class WorkerTimes(SharedMemoryFile):
    """Seconds by cause. Several threads of a process may lose a little, too."""

    NAME = "dieselfs-times"
    MAPPED_BYTES = _ROWS * len(CAUSES) * np.dtype(np.float64).itemsize

    @cached_property
    def _rows(self) -> Seconds:
        rows: Seconds = np.frombuffer(self._memory, np.float64).reshape(_ROWS, len(CAUSES))
        return rows

    def spent(self) -> Seconds:
        """Times of all processes together."""
        total: Seconds = self._rows.sum(0)
        return total

    @contextmanager
    def timed(self, rest: str) -> Iterator[None]:
        """Note the time of the block: what the meter of this process names, and the rest as `rest`. Blocks nest."""
        row = self._rows[os.getpid() % _ROWS]
        began_s, metered, noted = time.perf_counter(), METER.spent(), row.copy()
        try:
            yield
        finally:
            inside = row - noted
            elapsed_s = time.perf_counter() - began_s - float(inside.sum())
            metered = METER.spent() - metered if not inside.any() else np.zeros(len(CAUSES))
            row += shared_out(max(elapsed_s, 0.0), metered, rest)
