"""The descriptors that this process has open."""

import gc
import os
from contextlib import suppress


def descriptor_count() -> int:
    """The number of open descriptors, after a garbage collection, which could close some during a test."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def open_files() -> set[str]:
    """What is open, by name; a socket or pipe has a name of its own. What other tests left may be closed meanwhile."""
    gc.collect()
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found
