"""The descriptors that this process has open."""

import gc
import os


def descriptor_count() -> int:
    """The number of open descriptors, after a garbage collection, which could close some during a test."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
