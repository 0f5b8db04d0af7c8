"""A program that reads a mount until it is stopped, and verifies all results; for tests that disturb the mount.

    python verifying_reader.py MOUNTPOINT STOP SEED

Its requests need the daemon: dropped pages, names that were never looked up, `statfs`. The content of each file follows
from its name (`content_of`). It prints BEGUN after the first file. When the file STOP exists, it prints, as JSON, the
number of files, the failures, and the longest time of an operation.
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
PAUSE_S = 0.002
"""Between two files: else the readers take the processor from the processes that are to be replaced."""


def content_of(name: str) -> bytes:
    return random.Random(name).randbytes(FILE_BYTES)


def read_once(mountpoint: str, name: str, unknown: str) -> None:
    """Raises AssertionError for a wrong result, or OSError."""
    descriptor = os.open(f"{mountpoint}/{name}", os.O_RDONLY)
    try:
        content = os.read(descriptor, 2 * FILE_BYTES)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    assert content == content_of(name), f"{name}: wrong bytes"
    assert os.statvfs(mountpoint).f_blocks > 0
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
        time.sleep(PAUSE_S)
    return {"reads": reads, "failures": failures, "worst_s": worst_s}


if __name__ == "__main__":
    print(json.dumps(read_until(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
