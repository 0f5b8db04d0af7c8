"""What all processes that read for a dataset have spent, in memory that they share. This module maps files of memory.

It pickles as the path of its file below `/proc`, which exists while the process that made it lives; after that, or
where this process may not open it, times are counted for the process alone.
"""

import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from dieselfs.telemetry.stalls import CAUSES, METER, Seconds, shared_out

_NAME = "dieselfs-times"
_ROWS = 1021
"""A process adds to one of these rows, by its number: two that share one may lose a little."""
_SHAPE = (_ROWS, len(CAUSES))
_BYTES = _ROWS * len(CAUSES) * np.dtype(np.float64).itemsize


class WorkerTimes:
    """Seconds by cause. Several threads of a process may lose a little, too."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, _BYTES)
        self._path = f"/proc/{self._owner}/fd/{self._descriptor}"
        self._map(self._descriptor)

    def _map(self, descriptor: int) -> None:
        self._rows = np.frombuffer(mmap.mmap(descriptor, _BYTES), np.float64).reshape(_SHAPE)

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

    def __reduce__(self) -> tuple[Callable[[str], "WorkerTimes"], tuple[str]]:
        return _attached, (self._path,)


def _attached(path: str) -> WorkerTimes:
    times = WorkerTimes.__new__(WorkerTimes)
    times._owner, times._path = 0, path
    descriptor = opened_memory(path, _NAME)
    if descriptor is None:
        return WorkerTimes()
    try:
        times._map(descriptor)
    finally:
        os.close(descriptor)
    return times


def opened_memory(path: str, name: str) -> int | None:
    """A descriptor of the memory file `name` of another process, by its path below `/proc`; None if it has ended, or
    may not be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    # The number of the process may be that of another one by now.
    if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{name} "):
        return descriptor
    os.close(descriptor)
    return None
