"""A program that reads a mount without end and checks everything that it sees; for tests that disturb the mount.

    python verifying_reader.py MOUNTPOINT STOP SEED

It asks what the kernel cannot answer by itself: pages that were dropped, names that were never asked for, `statfs`.
The content of each file follows from its name (`content_of`). It prints BEGUN when it has read the first one and, when
the file STOP is there, as JSON, how many files it has read, what failed, and the longest time that anything took.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

BEGUN = "reading"
FILE_BYTES = 20_000


def content_of(name: str) -> bytes:
    return random.Random(name).randbytes(FILE_BYTES)


def read_once(mountpoint: str, name: str, unknown: str) -> None:
    """Raises AssertionError or OSError for anything that is not as it must be."""
    descriptor = os.open(f"{mountpoint}/{name}", os.O_RDONLY)
    try:
        content = os.read(descriptor, 2 * FILE_BYTES)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    assert content == content_of(name), f"{name}: other bytes than were stored"
    assert os.statvfs(mountpoint).f_files > 0
    assert not os.path.exists(f"{mountpoint}/{unknown}")


def read_until(mountpoint: str, stop: Path, seed: int) -> dict[str, Any]:
    choice = random.Random(seed)
    names = os.listdir(mountpoint)
    reads, worst_s, failures = 0, 0.0, []
    while not stop.exists():
        began_s = time.monotonic()
        try:
            read_once(mountpoint, choice.choice(names), f"unknown-{seed}-{reads}")
        except (AssertionError, OSError) as error:
            failures.append(repr(error))
        reads += 1
        if reads == 1:
            print(BEGUN, flush=True)
        worst_s = max(worst_s, time.monotonic() - began_s)
    return {"reads": reads, "failures": failures, "worst_s": worst_s}


if __name__ == "__main__":
    print(json.dumps(read_until(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
