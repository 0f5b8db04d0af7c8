"""A file that one process at a time locks. This module locks files.

The kernel releases the lock when the process ends. The holder may remove the file before it releases the lock: a
process that waited finds another file at the path, or none, and retries.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.02


@contextmanager
def locked(path: Path, timeout_s: float = 0.0) -> Iterator[int]:
    """Hold the lock of the file at `path` until the end of the block; yields its descriptor.

    Makes the file if there is none. Raises BlockingIOError if another process has the lock after `timeout_s`; OSError.
    """
    end_s = time.monotonic() + timeout_s
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() >= end_s:
            raise BlockingIOError(f"another process has locked {path}")
        time.sleep(_POLL_S)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the last holder has just removed the file


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one at `path`: it may have been removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
